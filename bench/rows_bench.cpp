// Rows of the CPU engine against plain copies and against the least that a sum must do. Working sets are
// far larger than the caches, rows are visited in a scattered order as a combine does. `rate` counts
// bytes read and written.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "engine/cpu/rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using namespace sluice::cpu;
using sluice::DataType;

constexpr std::size_t working_set = std::size_t{384} << 20;

// Two blocks for the whole run: what is read, and what is written.
std::uint8_t* block(bool written) {
  static std::uint8_t* const blocks[2] = {new std::uint8_t[working_set + 64], new std::uint8_t[working_set + 64]};
  static const bool filled = [] {
    for (auto* memory : blocks) std::memset(memory, 0x3f, working_set + 64);
    return true;
  }();
  (void)filled;
  auto* memory = blocks[written ? 1 : 0];
  return memory + (64 - reinterpret_cast<std::uintptr_t>(memory) % 64) % 64;
}

// Rows of one size in a block; next() visits all of them in a random order.
class Rows {
 public:
  Rows(std::size_t bytes, bool written) : memory_(block(written)), bytes_(bytes), order_(working_set / bytes) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::shuffle(order_.begin(), order_.end(), std::mt19937(written ? 1 : 2));
  }
  std::uint8_t* next() {
    at_ = at_ + 1 == order_.size() ? 0 : at_ + 1;
    return memory_ + order_[at_] * bytes_;
  }

 private:
  std::uint8_t* memory_;
  std::size_t bytes_, at_ = 0;
  std::vector<std::size_t> order_;
};

void set_rate(benchmark::State& state, std::size_t bytes) {
  state.counters["rate"] = benchmark::Counter(static_cast<double>(bytes), benchmark::Counter::kIsIterationInvariantRate);
}

using Copy = void (*)(void*, const void*, std::size_t);

void library_memcpy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

#if defined(__x86_64__)
void rep_movsb(void* to, const void* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
#endif

void copy(benchmark::State& state, Copy function) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Rows from(bytes, false), to(bytes, true);
  for (auto _ : state) function(to.next(), from.next(), bytes);
  stream_fence();
  set_rate(state, 2 * bytes);
}

BENCHMARK_CAPTURE(copy, stream_row, stream_row)->Arg(14336)->Arg(7168);
BENCHMARK_CAPTURE(copy, copy_row, copy_row)->Arg(14336)->Arg(7168);
BENCHMARK_CAPTURE(copy, memcpy, library_memcpy)->Arg(14336)->Arg(7168);
#if defined(__x86_64__)
BENCHMARK_CAPTURE(copy, rep_movsb, rep_movsb)->Arg(14336)->Arg(7168);
#endif

constexpr std::int64_t hidden = 7168;
constexpr std::size_t row_bytes = 2 * hidden;

void sum(benchmark::State& state, bool weighted, bool stream) {
  const auto count = static_cast<int>(state.range(0));
  Rows from(row_bytes, false), to(row_bytes, true);
  const float weights[8] = {0.5f, 0.25f, 0.125f, 0.1f, 0.2f, 0.3f, 0.4f, 0.6f};
  const void* rows[8];
  for (auto _ : state) {
    for (int r = 0; r < count; ++r) rows[r] = from.next();
    sum_rows({.out = to.next(), .stream = stream, .rows = rows, .weights = weighted ? weights : nullptr, .count = count, .n = hidden});
  }
  stream_fence();
  set_rate(state, row_bytes * static_cast<std::size_t>(count + 1));
}

BENCHMARK_CAPTURE(sum, stream, false, true)->DenseRange(1, 8);
BENCHMARK_CAPTURE(sum, weighted_stream, true, true)->DenseRange(1, 8);
BENCHMARK_CAPTURE(sum, weighted, true, false)->Arg(2)->Arg(4);

#if defined(__x86_64__)
// The least that a sum must do with memory: read all rows, stream one out.
__attribute__((target("avx2"))) void read_rows_and_stream(void* out, const void* const* rows, int count) {
  auto* to = static_cast<__m256i*>(out);
  for (std::size_t i = 0; i < row_bytes / 32; i += 2) {
    __m256i a = _mm256_setzero_si256(), b = a;
    for (int r = 0; r < count; ++r) {
      const auto* from = static_cast<const __m256i*>(rows[r]) + i;
      a = _mm256_xor_si256(a, _mm256_loadu_si256(from));
      b = _mm256_xor_si256(b, _mm256_loadu_si256(from + 1));
    }
    _mm256_stream_si256(to + i, a);
    _mm256_stream_si256(to + i + 1, b);
  }
}

void least(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0));
  Rows from(row_bytes, false), to(row_bytes, true);
  const void* rows[8];
  for (auto _ : state) {
    for (int r = 0; r < count; ++r) rows[r] = from.next();
    read_rows_and_stream(to.next(), rows, count);
  }
  stream_fence();
  set_rate(state, row_bytes * static_cast<std::size_t>(count + 1));
}

BENCHMARK(least)->DenseRange(1, 8);
#endif

void quantise(benchmark::State& state, DataType type, sluice::Quantise form) {
  const auto bytes = static_cast<std::size_t>(hidden * size_of(type));
  Rows from(bytes, false), to(hidden + 256, true);
  for (auto _ : state) {
    auto* out = to.next();
    quantise_row(out, out + hidden, from.next(), type, hidden, form);
  }
  set_rate(state, bytes + hidden);
}

BENCHMARK_CAPTURE(quantise, bf16, DataType::bf16, sluice::Quantise::e4m3);
BENCHMARK_CAPTURE(quantise, bf16_power_of_two, DataType::bf16, sluice::Quantise::e4m3_power_of_two);
BENCHMARK_CAPTURE(quantise, fp32, DataType::fp32, sluice::Quantise::e4m3);

}  // namespace
