#include "engine/cpu/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/rows.cpp"
#include <hwy/foreach_target.h>
// The order matters.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "engine/cpu/rows.h"
#include "engine/cpu/rows_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

template <class D>
HWY_INLINE void stream_vectors(D d, std::uint8_t*& to, const std::uint8_t*& from, const std::uint8_t* end) {
  constexpr std::size_t size = hn::MaxLanes(d);
  for (; static_cast<std::size_t>(end - from) >= size; from += size, to += size) store<true>(d, load(d, from), to);
}

void stream_row_here(void* to_row, const void* from_row, std::size_t bytes) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(to_row, from_row, bytes);
#else
  const hn::ScalableTag<std::uint8_t> d;
  const hn::CappedTag<std::uint8_t, 16> d16;
  constexpr std::size_t size = hn::MaxLanes(d);
  constexpr std::size_t line = 64;
  auto* to = static_cast<std::uint8_t*>(to_row);
  const auto* from = static_cast<const std::uint8_t*>(from_row);
  const auto* end = from + bytes;

  // Whole lines, so that each leaves its write-combining buffer in one piece. Fetching the source ahead
  // of the loads gains nothing that can be measured: the loads are all that there is to look ahead to.
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % line;
  const std::size_t head = misaligned ? line - misaligned : 0;
  stream_vectors(d16, to, from, from + (head < bytes ? head : bytes));
  for (; static_cast<std::size_t>(end - from) >= line; from += line, to += line) {
    for (std::size_t i = 0; i < line; i += size) store<true>(d, load(d, from + i), to + i);
  }
  stream_vectors(d16, to, from, end);
#endif
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {

HWY_EXPORT(stream_row_here);

void copy_row(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void stream_row(void* to, const void* from, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(stream_row_here)(to, from, bytes);
}

void stream_fence() { hwy::FlushStream(); }

}  // namespace sluice::cpu
#endif
