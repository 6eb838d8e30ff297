// Row arithmetic of the CPU engine: one row at a time, vectorised with Highway, dispatched at run time.
// Every SIMD target gives the same bits as core/numbers.h (promise V3, V4).
#pragma once

#include <cstddef>
#include <cstdint>

#include <sluice/options.h>
#include <sluice/tensor.h>

namespace sluice::cpu {

// Copies one row with ordinary stores: the reader is likely to find it in a cache.
void copy_row(void* to, const void* from, std::size_t bytes);

// Copies one row past the caches. `to` is 16-byte aligned, `bytes` a multiple of 16. The stores are not
// ordered by a later release store: stream_fence() in the same thread before the rows are announced.
void stream_row(void* to, const void* from, std::size_t bytes);

// Orders this thread's streaming stores before its later stores (sfence on x86, nothing elsewhere).
void stream_fence();

struct SumRows {
  void* out = nullptr;                 // n elements of `out_type` (bf16, fp16, fp32), 16-byte aligned
  DataType out_type = DataType::bf16;
  bool stream = false;                 // store past the caches; n * size is then a multiple of 16
  const void* const* rows = nullptr;   // `count` rows of n elements of `in_type`, in the order of addition
  DataType in_type = DataType::bf16;
  const float* weights = nullptr;      // one per row, or none
  int count = 0;
  const void* bias[2] = {nullptr, nullptr};  // n elements of `out_type`, or null; the second only beside the first
  std::int64_t n = 0;
};

// out = round(bias[0] + bias[1] + sum of weights[i] * rows[i]) in the order and rounding of promise V3.
void sum_rows(const SumRows& sum);

// Quantises one row of n bf16, fp16 or fp32 elements to e4m3 (promise V4). `scales` receives
// ceil(n / 128) floats (Quantise::e4m3), or as many exponent bytes padded to a multiple of 4 with zeros
// (Quantise::e4m3_power_of_two).
void quantise_row(std::uint8_t* out, void* scales, const void* row, DataType type, std::int64_t n, Quantise form);

// Name of the SIMD target in use, "AVX2" for example.
const char* simd_target();

// Every target this machine and build can run, best first, and the switch between them (SLUICE_CPU_TARGET
// and tests). A name may be written in small letters; "scalar" is the last. Throws ArgumentError for one that is not in
// the list. No switch while operations run.
int simd_target_count();
const char* simd_target_name(int index);
const char* find_simd_target(const char* name);  // the target that would be used
void use_simd_target(const char* name);

}  // namespace sluice::cpu
