// Element types in plain scalar code: the program's own arithmetic, written apart from the library's so
// that one can check the other.
#pragma once

#include <sluice/tensor.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace sluice::cli {

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// To nearest even; a NaN becomes 0x7fc0.
inline std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_fp16(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 31u;
  const std::uint32_t mantissa = h & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline std::uint16_t to_fp16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7E00;
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65520 and up
  if (magnitude < 0x38800000u) {  // below 2^-14: the result counts units of 2^-24
    const float units = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24F);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(units));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

// To nearest even, saturating at 448; a NaN becomes 0x7f.
inline std::uint8_t to_e4m3(float x) {
  if (std::isnan(x)) return 0x7F;
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= 448.0F) return sign | 0x7E;
  if (magnitude < 0x1p-6F)
    return static_cast<std::uint8_t>(sign | static_cast<int>(std::nearbyint(magnitude * 0x1p9F)));
  const int exponent = std::ilogb(magnitude);
  const int eighths = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));  // 8..16
  return static_cast<std::uint8_t>(sign | (((exponent + 7) << 3) + (eighths - 8)));
}

// Element i of a row of bf16, fp16 or fp32.
inline float element(const void* row, DataType type, std::int64_t i) {
  if (type == DataType::fp32) return static_cast<const float*>(row)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(row)[i];
  return type == DataType::bf16 ? from_bf16(bits) : from_fp16(bits);
}

inline void set_element(void* row, DataType type, std::int64_t i, float value) {
  if (type == DataType::fp32) {
    static_cast<float*>(row)[i] = std::isnan(value) ? std::bit_cast<float>(0x7FC00000u) : value;
  } else {
    static_cast<std::uint16_t*>(row)[i] = type == DataType::bf16 ? to_bf16(value) : to_fp16(value);
  }
}

}  // namespace sluice::cli
