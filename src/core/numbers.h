// The arithmetic of rows, one number at a time: every conversion, the separately rounded product and
// sum, and the quantise scale. Each engine gives these bits (promises V3, V4).
//
// Rounding is to nearest even, in integers, so it depends on no mode, flag or instruction set. A NaN that
// comes out of a conversion is the canonical one of its type. Host code that includes this is built with
// -ffp-contract=off.
#pragma once

#include <cstdint>
#include <cstring>

#include <sluice/options.h>
#include <sluice/tensor.h>

#include "core/host_device.h"

namespace sluice::numbers {

SLUICE_HD inline std::uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

SLUICE_HD inline float float_of_bits(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

inline constexpr std::uint32_t fp32_infinity = 0x7f80'0000u;
inline constexpr std::uint32_t fp32_nan = 0x7fc0'0000u;
inline constexpr std::uint16_t bf16_nan = 0x7fc0;
inline constexpr std::uint16_t fp16_nan = 0x7e00;
inline constexpr std::uint8_t e4m3_nan = 0x7f;
inline constexpr std::uint8_t e5m2_nan = 0x7f;

SLUICE_HD inline bool is_nan(float x) { return (bits_of(x) & 0x7fff'ffffu) > fp32_infinity; }

// Each operation rounds once; nothing is fused.
SLUICE_HD inline float product(float w, float x) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(w, x);
#else
  return w * x;
#endif
}

SLUICE_HD inline float sum(float acc, float p) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(acc, p);
#else
  return acc + p;
#endif
}

SLUICE_HD inline float quotient(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(x, y);
#else
  return x / y;
#endif
}

SLUICE_HD inline float canonical(float x) { return is_nan(x) ? float_of_bits(fp32_nan) : x; }

SLUICE_HD inline float float_of_bf16(std::uint16_t x) { return float_of_bits(std::uint32_t{x} << 16); }

SLUICE_HD inline std::uint16_t bf16_of_float(float x) {
  if (is_nan(x)) return bf16_nan;
  const std::uint32_t bits = bits_of(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// A small float has `mantissa` bits of mantissa and an exponent of bias `bias`. `magnitude` is the bits of
// a non-negative FP32 number; the result is the nearest small float, without regard to its largest one.
template <int mantissa, int bias>
SLUICE_HD inline std::uint32_t small_of_magnitude(std::uint32_t magnitude) {
  constexpr int normal_shift = 23 - mantissa;
  constexpr std::uint32_t smallest_normal = static_cast<std::uint32_t>(128 - bias) << 23;
  std::uint32_t significand = magnitude;
  int shift = normal_shift;
  std::uint32_t rebias = static_cast<std::uint32_t>(127 - bias) << mantissa;
  if (magnitude < smallest_normal) {
    const int exponent = static_cast<int>(magnitude >> 23);
    shift += 128 - bias - exponent;
    if (shift > 24) return 0;  // less than half of the smallest; FP32 subnormals too
    significand = (magnitude & 0x007f'ffffu) | 0x0080'0000u;
    rebias = 0;
  }
  const std::uint32_t half = 1u << (shift - 1);
  return ((significand + half - 1u + ((significand >> shift) & 1u)) >> shift) - rebias;
}

// The inverse, exact. `x` is finite and has no sign.
template <int mantissa, int bias>
SLUICE_HD inline float float_of_small(std::uint32_t x) {
  if (x >> mantissa) return float_of_bits((x << (23 - mantissa)) + (static_cast<std::uint32_t>(127 - bias) << 23));
  constexpr std::uint32_t smallest = static_cast<std::uint32_t>(128 - bias - mantissa) << 23;
  return static_cast<float>(x) * float_of_bits(smallest);
}

SLUICE_HD inline float with_sign(float magnitude, bool negative) {
  return float_of_bits(bits_of(magnitude) | (negative ? 0x8000'0000u : 0u));
}

SLUICE_HD inline float float_of_fp16(std::uint16_t x) {
  const std::uint32_t magnitude = x & 0x7fffu;
  if (magnitude > 0x7c00u) return float_of_bits(fp32_nan);
  const float value = magnitude == 0x7c00u ? float_of_bits(fp32_infinity) : float_of_small<10, 15>(magnitude);
  return with_sign(value, (x >> 15) != 0);
}

SLUICE_HD inline std::uint16_t fp16_of_float(float x) {
  if (is_nan(x)) return fp16_nan;
  std::uint32_t magnitude = bits_of(x) & 0x7fff'ffffu;
  if (magnitude > 0x4780'0000u) magnitude = 0x4780'0000u;  // 65536, which is encoded as infinity
  return static_cast<std::uint16_t>(small_of_magnitude<10, 15>(magnitude) | ((bits_of(x) >> 16) & 0x8000u));
}

SLUICE_HD inline float float_of_e4m3(std::uint8_t x) {
  const std::uint32_t magnitude = x & 0x7fu;
  if (magnitude == 0x7fu) return float_of_bits(fp32_nan);
  return with_sign(float_of_small<3, 7>(magnitude), (x >> 7) != 0);
}

// Saturating: infinities too become +-448.
SLUICE_HD inline std::uint8_t e4m3_of_float(float x) {
  if (is_nan(x)) return e4m3_nan;
  std::uint32_t magnitude = bits_of(x) & 0x7fff'ffffu;
  if (magnitude > 0x43e0'0000u) magnitude = 0x43e0'0000u;
  return static_cast<std::uint8_t>(small_of_magnitude<3, 7>(magnitude) | ((bits_of(x) >> 24) & 0x80u));
}

SLUICE_HD inline float float_of_e5m2(std::uint8_t x) {
  const std::uint32_t magnitude = x & 0x7fu;
  if (magnitude > 0x7cu) return float_of_bits(fp32_nan);
  const float value = magnitude == 0x7cu ? float_of_bits(fp32_infinity) : float_of_small<2, 15>(magnitude);
  return with_sign(value, (x >> 7) != 0);
}

// Not saturating: e5m2 has infinities, and rounds as fp16 does.
SLUICE_HD inline std::uint8_t e5m2_of_float(float x) {
  if (is_nan(x)) return e5m2_nan;
  std::uint32_t magnitude = bits_of(x) & 0x7fff'ffffu;
  if (magnitude > 0x4780'0000u) magnitude = 0x4780'0000u;
  return static_cast<std::uint8_t>(small_of_magnitude<2, 15>(magnitude) | ((bits_of(x) >> 24) & 0x80u));
}

// How one element type is stored and read.
template <DataType type>
struct Number;

template <>
struct Number<DataType::bf16> {
  using Bits = std::uint16_t;
  SLUICE_HD static float to_float(Bits x) { return float_of_bf16(x); }
  SLUICE_HD static Bits from_float(float x) { return bf16_of_float(x); }
};

template <>
struct Number<DataType::fp16> {
  using Bits = std::uint16_t;
  SLUICE_HD static float to_float(Bits x) { return float_of_fp16(x); }
  SLUICE_HD static Bits from_float(float x) { return fp16_of_float(x); }
};

template <>
struct Number<DataType::fp32> {
  using Bits = std::uint32_t;
  SLUICE_HD static float to_float(Bits x) { return float_of_bits(x); }
  SLUICE_HD static Bits from_float(float x) { return bits_of(canonical(x)); }
};

template <>
struct Number<DataType::e4m3> {
  using Bits = std::uint8_t;
  SLUICE_HD static float to_float(Bits x) { return float_of_e4m3(x); }
  SLUICE_HD static Bits from_float(float x) { return e4m3_of_float(x); }
};

template <>
struct Number<DataType::e5m2> {
  using Bits = std::uint8_t;
  SLUICE_HD static float to_float(Bits x) { return float_of_e5m2(x); }
  SLUICE_HD static Bits from_float(float x) { return e5m2_of_float(x); }
};

// Quantising to e4m3, per group. `a` of a group: start from smallest_largest and fold in each element.
inline constexpr int quantise_group = 128;
inline constexpr float smallest_largest = 1e-4f;

// Groups of a row of n elements, and the scales that travel with it: exponent bytes are padded with zeros.
SLUICE_HD constexpr std::int64_t quantise_groups(std::int64_t n) { return (n + quantise_group - 1) / quantise_group; }
SLUICE_HD constexpr std::int64_t quantise_scales(std::int64_t n, Quantise form) {
  return form == Quantise::e4m3_power_of_two ? (quantise_groups(n) + 3) / 4 * 4 : quantise_groups(n);
}

SLUICE_HD inline float larger_finite(float a, float x) {
  const std::uint32_t magnitude = bits_of(x) & 0x7fff'ffffu;
  if (magnitude >= fp32_infinity || magnitude <= bits_of(a)) return a;
  return float_of_bits(magnitude);
}

// Quantise::e4m3: the scale that travels, and the factor that elements are multiplied by. The factor is a
// division of its own, not 1 / scale.
SLUICE_HD inline float quantise_scale(float a) { return quotient(a, 448.0f); }
SLUICE_HD inline float quantise_factor(float a) { return quotient(448.0f, a); }
SLUICE_HD inline std::uint8_t quantise(float x, float factor) { return e4m3_of_float(product(x, factor)); }

// Quantise::e4m3_power_of_two: the exponent byte that travels, and the scale that it means. The scale lies
// between 2^-22 and 2^120, so it and its inverse are normal, and dividing by it is the same as multiplying
// by the inverse.
SLUICE_HD inline std::uint8_t quantise_exponent(float a) {
  const std::uint32_t bits = bits_of(quantise_scale(a));
  return static_cast<std::uint8_t>((bits >> 23) + ((bits & 0x007f'ffffu) != 0 ? 1u : 0u));
}
SLUICE_HD inline float scale_of_exponent(std::uint8_t exponent) { return float_of_bits(std::uint32_t{exponent} << 23); }
SLUICE_HD inline float factor_of_exponent(std::uint8_t exponent) { return float_of_bits((254u - exponent) << 23); }
SLUICE_HD inline std::uint8_t quantise_by_scale(float x, float scale) { return e4m3_of_float(quotient(x, scale)); }

}  // namespace sluice::numbers
