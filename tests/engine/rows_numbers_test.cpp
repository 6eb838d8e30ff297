// The scalar definition of every conversion against a definition in double precision.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "core/numbers.h"

namespace {

using namespace sluice::numbers;
using sluice::DataType;

// A small float by its definition.
struct Format {
  int mantissa, bias;
  double largest;
  bool saturates;
};

constexpr Format bf16{7, 127, 0x1.fep127, false};
constexpr Format fp16{10, 15, 65504.0, false};
constexpr Format e4m3{3, 7, 448.0, true};
constexpr Format e5m2{2, 15, 57344.0, false};

double value_of(const Format& f, unsigned bits) {
  const unsigned exponent = bits >> f.mantissa, fraction = bits & ((1u << f.mantissa) - 1u);
  if (exponent == 0) return std::ldexp(fraction, 1 - f.bias - f.mantissa);
  return std::ldexp(fraction + (1u << f.mantissa), static_cast<int>(exponent) - f.bias - f.mantissa);
}

// The nearest value of the format, ties to the even one, computed in double without loss.
double nearest(const Format& f, double x) {
  if (x == 0.0) return x;
  if (std::isinf(x)) return f.saturates ? std::copysign(f.largest, x) : x;
  const int exponent = std::max(std::ilogb(x), 1 - f.bias);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, f.mantissa - exponent)), exponent - f.mantissa);
  if (std::fabs(rounded) <= f.largest) return rounded;
  return std::copysign(f.saturates ? f.largest : std::numeric_limits<double>::infinity(), x);
}

template <DataType type>
void expect_nearest(const Format& f, float x) {
  const auto bits = Number<type>::from_float(x);
  if (std::isnan(x)) {
    EXPECT_TRUE(is_nan(Number<type>::to_float(bits)));
    return;
  }
  const float got = Number<type>::to_float(bits);
  const auto want = static_cast<float>(nearest(f, x));
  ASSERT_EQ(bits_of(got), bits_of(want)) << std::hexfloat << x << " gave " << got << ", not " << want;
}

template <DataType type>
void expect_values(const Format& f, unsigned infinity, unsigned first_nan) {
  constexpr unsigned sign = 1u << (8 * sizeof(typename Number<type>::Bits) - 1);
  for (unsigned bits = 0; bits < 2 * sign; ++bits) {
    const unsigned magnitude = bits & (sign - 1u);
    const auto narrow = static_cast<typename Number<type>::Bits>(bits);
    const float got = Number<type>::to_float(narrow);
    if (magnitude >= first_nan) {
      ASSERT_TRUE(is_nan(got)) << bits;
      continue;
    }
    double want = magnitude == infinity ? std::numeric_limits<double>::infinity() : value_of(f, magnitude);
    if (bits & sign) want = -want;
    ASSERT_EQ(bits_of(got), bits_of(static_cast<float>(want))) << bits;
    ASSERT_EQ(Number<type>::from_float(got), narrow) << bits;
  }
}

template <DataType type>
void expect_halfway_cases(const Format& f, unsigned last) {
  for (unsigned bits = 0; bits < last; ++bits) {
    const auto half = static_cast<float>((value_of(f, bits) + value_of(f, bits + 1)) / 2);
    for (const float x : {half, std::nextafter(half, 0.0f), std::nextafter(half, std::numeric_limits<float>::infinity())}) {
      expect_nearest<type>(f, x);
      expect_nearest<type>(f, -x);
    }
  }
}

template <DataType type>
void expect_random(const Format& f, int count) {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::uint32_t> near_range(0x3000'0000u, 0x4880'0000u);
  for (int i = 0; i < count; ++i) {
    expect_nearest<type>(f, float_of_bits(static_cast<std::uint32_t>(random())));
    const auto sign = static_cast<std::uint32_t>((random() & 1u) << 31);
    expect_nearest<type>(f, float_of_bits(near_range(random) | sign));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(V4, every_bit_pattern_of_a_small_float_has_its_value) {
  expect_values<DataType::bf16>(bf16, 0x7f80, 0x7f81);
  expect_values<DataType::fp16>(fp16, 0x7c00, 0x7c01);
  expect_values<DataType::e4m3>(e4m3, 0x100, 0x7f);
  expect_values<DataType::e5m2>(e5m2, 0x7c, 0x7d);
}

TEST(V4, halfway_cases_go_to_the_even_neighbour) {
  expect_halfway_cases<DataType::bf16>(bf16, 0x7f7f);
  expect_halfway_cases<DataType::fp16>(fp16, 0x7bff);
  expect_halfway_cases<DataType::e4m3>(e4m3, 0x7e);
  expect_halfway_cases<DataType::e5m2>(e5m2, 0x7b);
}

TEST(V4, random_floats_round_to_the_nearest) {
  expect_random<DataType::bf16>(bf16, 1'000'000);
  expect_random<DataType::fp16>(fp16, 1'000'000);
  expect_random<DataType::e4m3>(e4m3, 1'000'000);
  expect_random<DataType::e5m2>(e5m2, 1'000'000);
}

TEST(V4, a_computed_nan_is_canonical) {
  for (const std::uint32_t bits : {0x7f80'0001u, 0x7fc0'0000u, 0x7fff'ffffu, 0xff80'0001u, 0xffff'ffffu, 0xffc1'2345u}) {
    const float nan = float_of_bits(bits);
    EXPECT_EQ(bf16_of_float(nan), 0x7fc0);
    EXPECT_EQ(fp16_of_float(nan), 0x7e00);
    EXPECT_EQ(bits_of(canonical(nan)), 0x7fc0'0000u);
    EXPECT_EQ(e4m3_of_float(nan), 0x7f);
  }
}

TEST(V4, overflow_saturates_in_e4m3_and_is_infinite_elsewhere) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, 464.0f, 480.0f, 1e30f, infinity}) {
    EXPECT_EQ(e4m3_of_float(x), 0x7e);
    EXPECT_EQ(e4m3_of_float(-x), 0xfe);
  }
  EXPECT_EQ(fp16_of_float(65519.996f), 0x7bff);
  EXPECT_EQ(fp16_of_float(65520.0f), 0x7c00);
  EXPECT_EQ(fp16_of_float(-infinity), 0xfc00);
  EXPECT_EQ(e5m2_of_float(61440.0f), 0x7c);
  EXPECT_EQ(bf16_of_float(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(V4, quantise_scales_follow_the_formulas) {
  std::mt19937 random(11);
  for (int i = 0; i < 1'000'000; ++i) {
    const float a = larger_finite(smallest_largest, float_of_bits(static_cast<std::uint32_t>(random())));
    ASSERT_GE(a, 1e-4f);
    ASSERT_TRUE(std::isfinite(a));
    ASSERT_EQ(quantise_scale(a), static_cast<float>(static_cast<double>(a) / 448.0));
    ASSERT_EQ(quantise_factor(a), static_cast<float>(448.0 / static_cast<double>(a)));
    const float scale = scale_of_exponent(quantise_exponent(a));
    ASSERT_GE(scale, quantise_scale(a));
    ASSERT_LT(scale / 2, quantise_scale(a));
    const float x = float_of_bits(static_cast<std::uint32_t>(random()));
    ASSERT_EQ(quantise_by_scale(x, scale), quantise(x, 1.0f / scale));
    ASSERT_EQ(bits_of(canonical(x / scale)), bits_of(canonical(x * (1.0f / scale))));
  }
}

TEST(V6, a_group_without_finite_elements_has_a_finite_scale) {
  float a = smallest_largest;
  for (const float x : {0.0f, -0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    a = larger_finite(a, x);
  }
  EXPECT_EQ(a, 1e-4f);
  EXPECT_EQ(quantise_exponent(a), 127 - 22);
}

}  // namespace
