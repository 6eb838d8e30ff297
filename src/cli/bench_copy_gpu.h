// The yardstick of the bench on a GPU: one kernel of bulk copies per rank, with as many blocks as the
// operation may use SMs.
#pragma once

#include <sluice/event.h>
#include <sluice/group.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cli/bench_copy.h"

namespace sluice::cli {

struct GpuCopyShape {
  bool combine = false;
  bool one_process = false;  // all ranks are threads of this process
  std::size_t row_bytes = 0;
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  int blocks = 1;
};

class GpuYardstick : public Yardstick {
 public:
  // Queues this rank's copy on the caller's stream.
  virtual void queue(Stream stream) = 0;
};

// Collective, also when the yardstick is destroyed: peers read and write each other's memory. Throws
// std::runtime_error when memory cannot be had or mapped, or this build has no CUDA.
std::unique_ptr<GpuYardstick> make_gpu_yardstick(const Group& group, const GpuCopyShape& shape);

// The kernel's argument.
struct GpuCopyArgs {
  static constexpr int most_ranks = 128;  // of a node

  std::byte* windows[most_ranks]{};  // of every rank, as this one sees them
  int rank = 0;
  int ranks = 1;
  bool combine = false;
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  const std::byte* own = nullptr;
  std::byte* home = nullptr;
  // How the shared memory is cut: a row travels in chunks of at most `chunk_bytes`, each in a slot, and small rows
  // that lie one behind the other on both sides travel together.
  std::int64_t chunk_bytes = 0;
  std::int64_t rows_at_once = 1;
  int slots = 0;
};

// Cuts the shared memory, and launches. `stream` is a cudaStream_t. Throws std::runtime_error.
void cut_slots(GpuCopyArgs& args);
void launch_gpu_copy(const GpuCopyArgs& args, int blocks, void* stream);

}  // namespace sluice::cli
