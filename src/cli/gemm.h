// GEMMs that run beside an operation: C = A * B of bf16 with FP32 accumulation, by cuBLAS, which is loaded
// when the program runs.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace sluice::cli {

struct GemmShape {
  int m = 8192, n = 4096, k = 7168;
};
std::string text_of(const GemmShape& shape);  // "8192x4096x7168"

// Of "gemm" or "gemm:MxNxK", sizes that are multiples of 8 from 512 (smaller ones are launched more slowly
// than they run) to 32768; otherwise nothing.
std::optional<GemmShape> parse_gemm(const std::string& text);

// In a stream of their own of default priority, on the GPU that is current where they are made.
class Gemms {
 public:
  virtual ~Gemms() = default;
  // SMs that those started from now on are to take at most; 0: all.
  virtual void limit(int sms) = 0;
  // Starts `count` of them, back to back, and returns at once.
  virtual void start(int count) = 0;
  // Returns when all that were started before the last start() have ended.
  virtual void await_turn() = 0;
  // Returns when the stream is idle, with the GPU's time in us for each of the last start().
  virtual double finish() = 0;
};

// Making them, their first run with a limit, and destroying them wait for all that the GPU runs: nothing on
// it may wait for a peer then. Throws std::runtime_error when cuBLAS or memory cannot be had, or this build
// has no CUDA.
std::unique_ptr<Gemms> make_gemms(const GemmShape& shape);

}  // namespace sluice::cli
