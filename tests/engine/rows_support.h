// Rows at the edge of mapped memory, and numbers that are hard to round.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/numbers.h"
#include "engine/cpu/rows.h"

namespace rows_test {

using sluice::DataType;

// Memory with an unreadable page before and after it.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) {
    page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    size_ = (bytes + page_ - 1) / page_ * page_ + (bytes == 0 ? page_ : 0);
    void* all = mmap(nullptr, size_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::runtime_error("mmap failed");
    base_ = static_cast<std::uint8_t*>(all);
    if (mprotect(base_ + page_, size_, PROT_READ | PROT_WRITE) != 0) throw std::runtime_error("mprotect failed");
  }
  ~Guarded() { munmap(base_, size_ + 2 * page_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::uint8_t* first() const { return base_ + page_; }
  // `bytes` that end where the memory ends.
  std::uint8_t* last(std::size_t bytes) const { return base_ + page_ + size_ - bytes; }
  void fill(std::uint8_t value) const { std::memset(first(), value, size_); }
  // How many bytes outside [from, from + bytes) are not `value`.
  std::size_t touched_outside(const std::uint8_t* from, std::size_t bytes, std::uint8_t value) const {
    std::size_t touched = 0;
    for (const auto* p = first(); p < first() + size_; ++p) touched += (p < from || p >= from + bytes) && *p != value;
    return touched;
  }

 private:
  std::size_t page_ = 0, size_ = 0;
  std::uint8_t* base_ = nullptr;
};

// Runs the body once per SIMD target, and ends with the best one.
inline void on_every_target(const std::function<void()>& body) {
  for (int i = sluice::cpu::simd_target_count() - 1; i >= 0; --i) {
    const char* name = sluice::cpu::simd_target_name(i);
    SCOPED_TRACE(std::string("target ") + name);
    sluice::cpu::use_simd_target(name);
    ASSERT_STREQ(sluice::cpu::simd_target(), name);
    body();
    if (testing::Test::HasFatalFailure()) return;
  }
}

enum class Mix { any_bits, ordinary };

// One element's bits: any pattern (NaN payloads, infinities, subnormals), or a value near 1 with full
// mantissa, whose sums must be rounded.
template <class Random>
std::uint32_t random_bits(Random& random, DataType type, Mix mix) {
  const auto bits = static_cast<std::uint32_t>(random());
  if (mix == Mix::any_bits && bits % 3 == 0) {
    constexpr float special[] = {0.0f, -0.0f, 1e-40f, -1e-45f, 65504.0f, 65520.0f, 6e-8f, 448.0f, -464.0f, 1.0f};
    const float x = special[(bits >> 8) % 10];
    if (type == DataType::bf16) return sluice::numbers::bf16_of_float(x);
    if (type == DataType::fp16) return sluice::numbers::fp16_of_float(x);
    return sluice::numbers::bits_of(x);
  }
  if (mix == Mix::any_bits) return size_of(type) == 2 ? bits & 0xffffu : bits;
  switch (type) {
    case DataType::bf16: return (bits & 0x83ffu) | 0x3c00u;
    case DataType::fp16: return (bits & 0x8fffu) | 0x3000u;
    default: return (bits & 0x83ff'ffffu) | 0x3c00'0000u;
  }
}

template <class Random>
void fill_row(Random& random, void* row, DataType type, std::int64_t n, Mix mix) {
  const auto size = static_cast<std::size_t>(size_of(type));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = random_bits(random, type, mix);
    std::memcpy(static_cast<std::uint8_t*>(row) + static_cast<std::size_t>(i) * size, &bits, size);  // little endian
  }
}

inline float element(DataType type, const void* row, std::int64_t i) {
  std::uint32_t bits = 0;
  const auto size = static_cast<std::size_t>(size_of(type));
  std::memcpy(&bits, static_cast<const std::uint8_t*>(row) + static_cast<std::size_t>(i) * size, std::min(size, sizeof bits));
  if (type == DataType::bf16) return sluice::numbers::float_of_bf16(static_cast<std::uint16_t>(bits));
  if (type == DataType::fp16) return sluice::numbers::float_of_fp16(static_cast<std::uint16_t>(bits));
  return sluice::numbers::float_of_bits(bits);
}

inline std::uint32_t rounded(DataType type, float x) {
  if (type == DataType::bf16) return sluice::numbers::bf16_of_float(x);
  if (type == DataType::fp16) return sluice::numbers::fp16_of_float(x);
  return sluice::numbers::bits_of(sluice::numbers::canonical(x));
}

inline constexpr DataType float_types[] = {DataType::bf16, DataType::fp16, DataType::fp32};

}  // namespace rows_test
