#include "engine/cpu/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/rows_quantise.cpp"
#include <hwy/foreach_target.h>
// The order matters.
#include <hwy/highway.h>

#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/cpu/rows.h"
#include "engine/cpu/rows_scalar.h"
#include "engine/cpu/rows_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

template <DataType type>
struct Group {
  static constexpr Order order = type == DataType::bf16 ? Order::even_odd : Order::halves;

  // The elements as signed integers of their own size: without the sign bit they are ordered as the
  // numbers are, and what is not finite is at least `infinity`.
  using Bits = std::conditional_t<type == DataType::fp32, std::int32_t, std::int16_t>;
  static constexpr Bits infinity = type == DataType::fp32 ? 0x7f80'0000 : type == DataType::bf16 ? 0x7f80 : 0x7c00;
  static constexpr Bits largest_bits = std::numeric_limits<Bits>::max();

  // The largest |x| below `infinity` if `masked`, else the largest of all.
  template <bool masked>
  static HWY_INLINE Bits largest(const void* row, std::int64_t at, std::int64_t end) {
    const hn::ScalableTag<Bits> d;
    constexpr std::int64_t lanes = hn::MaxLanes(d);
    auto most = hn::Zero(d);
    for (; at + lanes <= end; at += lanes) {
      const auto bits = load(d, static_cast<const std::uint8_t*>(row) + at * size_of(type));
      const auto magnitude = hn::And(bits, hn::Set(d, largest_bits));
      const auto counts = hn::Lt(magnitude, hn::Set(d, infinity));
      most = hn::Max(most, masked ? hn::IfThenElseZero(counts, magnitude) : magnitude);
    }
    HWY_ALIGN Bits found[lanes];
    hn::Store(most, d, found);
    Bits bits = 0;
    for (const Bits x : found) bits = x > bits ? x : bits;
    for (; at < end; ++at) {
      Bits x;
      std::memcpy(&x, static_cast<const std::uint8_t*>(row) + at * size_of(type), sizeof x);
      x = static_cast<Bits>(x & largest_bits);
      if (x > bits && !(masked && x >= infinity)) bits = x;
    }
    return bits;
  }

  template <Finite finite, class D>
  static HWY_INLINE void store_e4m3(D d, Vec<D> x, Vec<D> y, std::uint8_t* to) {
    const auto a = e4m3_of_float<finite>(d, x);
    const auto b = e4m3_of_float<finite>(d, y);
    const I32<D> di;
    if constexpr (order == Order::even_odd) {
      const U16<D> dh;
      store<false>(dh, hn::DemoteTo(dh, hn::BitCast(di, hn::Or(a, hn::ShiftLeft<8>(b)))), to);
    } else {
      const hn::Rebind<std::uint8_t, D> db;
      store<false>(db, hn::DemoteTo(db, hn::BitCast(di, a)), to);
      store<false>(db, hn::DemoteTo(db, hn::BitCast(di, b)), to + hn::MaxLanes(d));
    }
  }

  // out = e4m3(x * factor).
  template <Finite finite>
  static HWY_INLINE void quantise(std::uint8_t* out, const void* row, std::int64_t at, std::int64_t end, float factor) {
    const hn::ScalableTag<float> d;
    constexpr std::int64_t step = 2 * static_cast<std::int64_t>(hn::MaxLanes(d));
    const auto f = hn::Set(d, factor);
    for (; at + step <= end; at += step) {
      const auto x = load_pair<type, order>(d, row, at);
      store_e4m3<finite>(d, hn::Mul(x.a, f), hn::Mul(x.b, f), out + at);
    }
    for (; at < end; ++at) out[at] = numbers::quantise(element<type>(row, at), factor);
  }
};

// What one group is multiplied by; its scale goes to `scales`.
inline float set_scale(std::uint8_t* scales, std::int64_t group, float a, Quantise form) {
  if (form == Quantise::e4m3) {
    const float scale = numbers::quantise_scale(a);
    std::memcpy(scales + 4 * group, &scale, sizeof scale);
    return numbers::quantise_factor(a);
  }
  scales[group] = numbers::quantise_exponent(a);
  return numbers::factor_of_exponent(scales[group]);
}

template <DataType type>
void quantise_typed(std::uint8_t* out, void* scales, const void* row, std::int64_t n, Quantise form) {
  using G = Group<type>;
  auto* to = static_cast<std::uint8_t*>(scales);
  std::int64_t group = 0;
  for (std::int64_t at = 0; at < n; at += numbers::quantise_group, ++group) {
    const std::int64_t end = n - at < numbers::quantise_group ? n : at + numbers::quantise_group;
    auto largest = G::template largest<false>(row, at, end);
    const bool finite = largest < G::infinity;
    if (!finite) largest = G::template largest<true>(row, at, end);
    const float a = numbers::larger_finite(numbers::smallest_largest, element<type>(&largest, 0));
    const float factor = set_scale(to, group, a, form);
    if (finite) {
      G::template quantise<Finite::yes>(out, row, at, end, factor);
    } else {
      G::template quantise<Finite::unknown>(out, row, at, end, factor);
    }
  }
  if (form == Quantise::e4m3_power_of_two) {
    for (; group < numbers::quantise_scales(n, form); ++group) to[group] = 0;
  }
}

void quantise_row_here(std::uint8_t* out, void* scales, const void* row, DataType type, std::int64_t n, Quantise form) {
  switch (type) {
    case DataType::bf16: return quantise_typed<DataType::bf16>(out, scales, row, n, form);
    case DataType::fp16: return quantise_typed<DataType::fp16>(out, scales, row, n, form);
    default: return quantise_typed<DataType::fp32>(out, scales, row, n, form);
  }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {

HWY_EXPORT(quantise_row_here);

void quantise_row(std::uint8_t* out, void* scales, const void* row, DataType type, std::int64_t n, Quantise form) {
  HWY_DYNAMIC_DISPATCH(quantise_row_here)(out, scales, row, type, n, form);
}

}  // namespace sluice::cpu
#endif
