#include "numbers.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace conformance {
namespace {

struct Format {
  int mantissa;  // stored bits
  int bias;
  double largest;
  bool saturates;
  std::uint32_t infinity;
  std::uint32_t nan;
  int sign_bit;
};

Format format_of(DataType type) {
  switch (type) {
    case DataType::bf16:
      return {7, 127, std::ldexp(255.0, 120), false, 0x7f80, 0x7fc0, 15};
    case DataType::fp16:
      return {10, 15, 65504.0, false, 0x7c00, 0x7e00, 15};
    default:
      return {3, 7, 448.0, true, 0x7f, 0x7f, 7};  // e4m3
  }
}

// Rounds in double, where every product of a power of two is exact, then writes the bits.
std::uint32_t encode(const Format& f, double value) {
  if (std::isnan(value)) return f.nan;
  const std::uint32_t sign = std::signbit(value) ? 1u << f.sign_bit : 0u;
  const double size = std::fabs(value);
  if (size == 0) return sign;
  const std::uint32_t overflow = f.saturates ? 0x7eu : f.infinity;
  if (std::isinf(size)) return sign | overflow;
  int exponent = 0;
  std::frexp(size, &exponent);
  const int smallest = 1 - f.bias;
  exponent = std::max(exponent - 1, smallest);
  const double steps = std::nearbyint(std::ldexp(size, f.mantissa - exponent));
  if (std::ldexp(steps, exponent - f.mantissa) > f.largest) return sign | overflow;
  // Below 2^mantissa steps the number is subnormal; a carry into the next exponent adds up by itself.
  const auto bits =
      static_cast<std::uint32_t>(steps) + (static_cast<std::uint32_t>(exponent - smallest) << f.mantissa);
  return sign | bits;
}

double decode(const Format& f, std::uint32_t bits) {
  const bool negative = (bits >> f.sign_bit) & 1u;
  const std::uint32_t size = bits & ((1u << f.sign_bit) - 1u);
  double value = 0;
  if (f.saturates ? size == f.nan : size > f.infinity) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (!f.saturates && size == f.infinity) {
    value = std::numeric_limits<double>::infinity();
  } else {
    const int exponent = static_cast<int>(size >> f.mantissa);
    const auto fraction = static_cast<double>(size & ((1u << f.mantissa) - 1u));
    const double hidden = exponent > 0 ? std::ldexp(1.0, f.mantissa) : 0.0;
    value = std::ldexp(hidden + fraction, std::max(exponent, 1) - f.bias - f.mantissa);
  }
  return negative ? -value : value;
}

}  // namespace

float to_float(DataType type, const void* element) {
  if (type == DataType::fp32) {
    float value;
    std::memcpy(&value, element, 4);
    return value;
  }
  if (type == DataType::bf16) {  // the upper half of an FP32
    std::uint16_t half;
    std::memcpy(&half, element, 2);
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  std::uint32_t bits = 0;
  std::memcpy(&bits, element, type == DataType::fp16 ? 2 : 1);
  return static_cast<float>(decode(format_of(type), bits));
}

void from_float(DataType type, float value, void* element) {
  if (type == DataType::fp32) {
    const std::uint32_t nan = 0x7fc00000;
    if (std::isnan(value))
      std::memcpy(element, &nan, 4);
    else
      std::memcpy(element, &value, 4);
    return;
  }
  const std::uint32_t bits = encode(format_of(type), static_cast<double>(value));
  std::memcpy(element, &bits, type == DataType::e4m3 ? 1 : 2);
}

double unit_roundoff(DataType type) {
  if (type == DataType::bf16) return 0x1p-8;
  return type == DataType::fp16 ? 0x1p-11 : 0x1p-24;
}

double smallest_subnormal(DataType type) {
  if (type == DataType::bf16) return 0x1p-133;
  return type == DataType::fp16 ? 0x1p-24 : 0x1p-149;
}

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t Random::next() {
  state += 0x9e3779b97f4a7c15u;
  return mix(state);
}

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - unit()));
  return radius * std::cos(6.283185307179586 * unit());
}

namespace {

// Sign, one of eight exponents around that of one, and a random fraction.
std::uint32_t tame_bits(DataType type, std::uint32_t random) {
  const std::uint32_t exponent = random & 7u;
  const std::uint32_t sign = (random >> 3) & 1u;
  const std::uint32_t fraction = random >> 4;
  switch (type) {
    case DataType::bf16:
      return (sign << 15) | ((123u + exponent) << 7) | (fraction & 0x7fu);
    case DataType::fp16:
      return (sign << 15) | ((11u + exponent) << 10) | (fraction & 0x3ffu);
    default:
      return (sign << 31) | ((123u + exponent) << 23) | (fraction & 0x7fffffu);
  }
}

std::uint32_t special_bits(DataType type, std::uint32_t random) {
  const std::uint32_t sign_bit = type == DataType::fp32 ? 31u : 15u;
  const std::uint32_t sign = (random >> 8) & 1u;
  std::uint32_t infinity = 0x7f800000;
  if (type == DataType::bf16) infinity = 0x7f80;
  if (type == DataType::fp16) infinity = 0x7c00;
  const std::uint32_t some = (random >> 9) & 0x3fu;
  std::uint32_t size = 0;
  switch (random % 6u) {
    case 0:
      size = infinity + 1u + some;
      break;  // NaN with a payload
    case 1:
      size = infinity;
      break;
    case 2:
      size = 0;
      break;
    case 3:
      size = 1u + some;
      break;  // subnormal
    case 4:
      size = infinity - 1u - some;
      break;  // near the largest
    default:
      size = infinity / 2u + some;
      break;  // near one
  }
  return (sign << sign_bit) | size;
}

bool is_number(DataType type) {
  return type == DataType::bf16 || type == DataType::fp16 || type == DataType::fp32;
}

}  // namespace

void fill_row(std::uint64_t key, DataType type, std::int64_t n, Fill fill, void* out) {
  auto* bytes = static_cast<unsigned char*>(out);
  const auto size = static_cast<std::size_t>(sluice::size_of(type));
  const bool number = is_number(type) && fill != Fill::noise;
  std::uint64_t state = mix(key);
  for (std::int64_t i = 0; i < n; ++i) {
    state += 0x9e3779b97f4a7c15u;
    const std::uint64_t random = mix(state);
    auto bits = static_cast<std::uint32_t>(random);
    if (number) {
      const bool special = fill == Fill::wild && (random >> 60) == 0;
      bits = special ? special_bits(type, bits) : tame_bits(type, bits);
    }
    std::memcpy(bytes + static_cast<std::size_t>(i) * size, &bits, std::min<std::size_t>(size, 4));
  }
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace conformance
