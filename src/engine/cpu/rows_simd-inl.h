// Loads, stores and rounding of rows, for the SIMD target that is being compiled. Included once per
// target, so it has the guard that Highway prescribes.
#if defined(SLUICE_ROWS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_ROWS_SIMD_INL_H_
#undef SLUICE_ROWS_SIMD_INL_H_
#else
#define SLUICE_ROWS_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

#include "core/numbers.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Two vectors of floats hold 2N consecutive elements in one of two orders. `halves`: the first N, then
// the others. `even_odd`: bf16 only; a 32-bit lane holds two elements, and a shift or a mask makes
// each a float, with no instruction that crosses lanes.
enum class Order { halves, even_odd };

template <class D>
using Vec = hn::Vec<D>;
template <class D>
using U32 = hn::RebindToUnsigned<D>;
template <class D>
using I32 = hn::RebindToSigned<D>;
template <class D>
using U16 = hn::Rebind<std::uint16_t, D>;

template <class D>
struct Pair {
  Vec<D> a, b;
};

// Highway's scalar LoadU and StoreU dereference the pointer, which rows may not be aligned for.
template <class D>
HWY_INLINE Vec<D> load(D d, const void* from) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> value;
  std::memcpy(&value, from, sizeof value);
  return hn::Set(d, value);
#else
  return hn::LoadU(d, static_cast<const hn::TFromD<D>*>(from));
#endif
}

// With `streaming`, `to` is aligned to the vector.
template <bool streaming, class D>
HWY_INLINE void store(D d, Vec<D> v, void* to) {
#if HWY_TARGET == HWY_SCALAR
  const auto value = hn::GetLane(v);
  std::memcpy(to, &value, sizeof value);
  (void)d;
#else
  if constexpr (streaming) {
    hn::Stream(v, d, static_cast<hn::TFromD<D>*>(to));
  } else {
    hn::StoreU(v, d, static_cast<hn::TFromD<D>*>(to));
  }
#endif
}

template <class D>
HWY_INLINE Vec<U32<D>> bits_of(D, Vec<D> v) {
  return hn::BitCast(U32<D>(), v);
}

// FP32 bits whose upper half is the bf16, rounded to nearest even; a NaN is canonical.
template <class D>
HWY_INLINE Vec<U32<D>> bf16_in_upper_half(D d, Vec<D> v) {
  const U32<D> du;
  const auto bits = bits_of(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, numbers::fp32_nan), rounded);
}

// With Finite::yes there is neither a NaN nor anything that would round above `largest`.
enum class Finite { unknown, yes };

// As numbers::small_of_magnitude for vectors, by one FP32 addition that rounds (to nearest even, the
// mode of every thread that did not change it): the low bits of |x| + 2^(e + 23 - mantissa), e the exponent of
// x but at least that of the smallest normal number, count units of the last place. `largest` saturates.
template <int mantissa, int bias, Finite finite, class D>
HWY_INLINE Vec<U32<D>> small_of_float(D d, Vec<D> v, std::uint32_t largest, std::uint32_t nan) {
  const U32<D> du;
  const I32<D> di;
  constexpr int sign_shift = mantissa == 10 ? 16 : 24;
  constexpr int up = (23 - mantissa) << 23;
  const auto all = bits_of(d, v);
  const auto sign = hn::And(hn::ShiftRight<sign_shift>(all), hn::Set(du, 0x8000'0000u >> sign_shift));
  auto magnitude = hn::BitCast(di, hn::And(all, hn::Set(du, 0x7fff'ffffu)));
  if (finite != Finite::yes) magnitude = hn::Min(magnitude, hn::Set(di, static_cast<std::int32_t>(largest)));
  const auto exponent = hn::Max(hn::And(magnitude, hn::Set(di, 0x7f80'0000)), hn::Set(di, (128 - bias) << 23));
  const auto magic = hn::Add(exponent, hn::Set(di, up));
  const auto counted = hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, magic)));
  const auto places = hn::Add(hn::ShiftRight<23 - mantissa>(exponent), hn::Set(di, -((128 - bias) << mantissa)));
  const auto value = hn::Or(hn::BitCast(du, hn::Add(hn::Sub(counted, magic), places)), sign);
  if constexpr (finite == Finite::yes) return value;
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, nan), value);
}

template <Finite finite, class D>
HWY_INLINE Vec<U32<D>> e4m3_of_float(D d, Vec<D> v) {
  return small_of_float<3, 7, finite>(d, v, 0x43e0'0000u, numbers::e4m3_nan);
}

#undef SLUICE_HAVE_F16C
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86 && !defined(HWY_DISABLE_F16C)
#define SLUICE_HAVE_F16C 1
#else
#define SLUICE_HAVE_F16C 0
#endif

template <class D>
HWY_INLINE Vec<D> float_of_fp16(D d, Vec<U16<D>> h) {
#if SLUICE_HAVE_F16C
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), h));
#else
  const U32<D> du;
  const auto bits = hn::PromoteTo(du, h);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  const auto exponent = hn::And(magnitude, hn::Set(du, 0x0f80'0000u));
  const auto normal = hn::Add(magnitude, hn::Set(du, 112u << 23));
  const auto infinite = hn::Add(normal, hn::Set(du, 112u << 23));
  const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(normal, hn::Set(du, 1u << 23))),
                                 hn::BitCast(d, hn::Set(du, 113u << 23)));
  auto value = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), bits_of(d, subnormal), normal);
  value = hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x0f80'0000u)), infinite, value);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  return hn::BitCast(d, hn::Or(value, sign));
#endif
}

template <class D>
HWY_INLINE Vec<U16<D>> fp16_of_float(D d, Vec<D> v) {
#if SLUICE_HAVE_F16C
  const auto canonical = hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(U32<D>(), numbers::fp32_nan)), v);
  return hn::BitCast(U16<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), canonical));
#else
  const auto bits = small_of_float<10, 15, Finite::unknown>(d, v, 0x4780'0000u, numbers::fp16_nan);
  return hn::DemoteTo(U16<D>(), hn::BitCast(I32<D>(), bits));
#endif
}

// 2N elements of `type` from element `at` of a row.
template <DataType type, Order order, class D>
HWY_INLINE Pair<D> load_pair(D d, const void* row, std::int64_t at) {
  constexpr std::size_t n = hn::MaxLanes(d);
  [[maybe_unused]] const U32<D> du;
  const auto* from = static_cast<const std::uint8_t*>(row) + at * size_of(type);
  if constexpr (type == DataType::fp32) {
    return {load(d, from), load(d, from + 4 * n)};
  } else if constexpr (type == DataType::fp16) {
    const U16<D> dh;
    return {float_of_fp16(d, load(dh, from)), float_of_fp16(d, load(dh, from + 2 * n))};
  } else if constexpr (order == Order::even_odd) {
    const auto both = load(du, from);
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)), hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff'0000u)))};
  } else {
    const U16<D> dh;
    return {hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, load(dh, from)))),
            hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, load(dh, from + 2 * n))))};
  }
}

template <bool streaming, class DH>
HWY_INLINE void store_halves([[maybe_unused]] DH dh, Vec<DH> a, Vec<DH> b, std::uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  store<false>(dh, a, to);
  store<false>(dh, b, to + 2);
#else
  const hn::Repartition<std::uint16_t, hn::Twice<DH>> whole;
  store<streaming>(whole, hn::Combine(whole, b, a), to);
#endif
}

// Rounds and stores 2N elements at element `at`.
template <DataType type, Order order, bool streaming, class D>
HWY_INLINE void store_pair(D d, Pair<D> pair, void* row, std::int64_t at) {
  constexpr std::size_t n = hn::MaxLanes(d);
  [[maybe_unused]] const U32<D> du;
  [[maybe_unused]] const U16<D> dh;
  auto* to = static_cast<std::uint8_t*>(row) + at * size_of(type);
  if constexpr (type == DataType::fp32) {
    const auto nan = hn::BitCast(d, hn::Set(du, numbers::fp32_nan));
    store<streaming>(d, hn::IfThenElse(hn::IsNaN(pair.a), nan, pair.a), to);
    store<streaming>(d, hn::IfThenElse(hn::IsNaN(pair.b), nan, pair.b), to + 4 * n);
  } else if constexpr (type == DataType::fp16) {
    store_halves<streaming>(dh, fp16_of_float(d, pair.a), fp16_of_float(d, pair.b), to);
  } else if constexpr (order == Order::even_odd) {
    const auto even = hn::ShiftRight<16>(bf16_in_upper_half(d, pair.a));
    const auto odd = hn::And(bf16_in_upper_half(d, pair.b), hn::Set(du, 0xffff'0000u));
    store<streaming>(du, hn::Or(even, odd), to);
  } else {
    const I32<D> di;
    const auto a = hn::ShiftRight<16>(bf16_in_upper_half(d, pair.a));
    const auto b = hn::ShiftRight<16>(bf16_in_upper_half(d, pair.b));
    store_halves<streaming>(dh, hn::DemoteTo(dh, hn::BitCast(di, a)), hn::DemoteTo(dh, hn::BitCast(di, b)), to);
  }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
