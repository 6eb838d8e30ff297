// Quantised rows against core/numbers.h on every SIMD target.
#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/rows_support.h"

namespace {

using namespace rows_test;
using sluice::Quantise;
namespace numbers = sluice::numbers;

struct Quantised {
  std::vector<std::uint8_t> elements, scales;
  bool operator==(const Quantised&) const = default;
};

Quantised reference(const void* row, DataType type, std::int64_t n, Quantise form) {
  Quantised want;
  for (std::int64_t begin = 0; begin < n; begin += 128) {
    const std::int64_t end = std::min(n, begin + 128);
    float a = numbers::smallest_largest;
    for (std::int64_t i = begin; i < end; ++i) a = numbers::larger_finite(a, element(type, row, i));
    if (form == Quantise::e4m3) {
      const std::uint32_t bits = numbers::bits_of(numbers::quantise_scale(a));
      for (int byte = 0; byte < 4; ++byte) want.scales.push_back(static_cast<std::uint8_t>(bits >> (8 * byte)));
    } else {
      want.scales.push_back(numbers::quantise_exponent(a));
    }
    const float scale = numbers::scale_of_exponent(numbers::quantise_exponent(a));
    for (std::int64_t i = begin; i < end; ++i) {
      const float x = element(type, row, i);
      want.elements.push_back(form == Quantise::e4m3 ? numbers::quantise(x, numbers::quantise_factor(a))
                                                     : numbers::quantise_by_scale(x, scale));
    }
  }
  while (want.scales.size() % 4 != 0) want.scales.push_back(0);
  return want;
}

class QuantiseTest {
 public:
  explicit QuantiseTest(std::int64_t largest_n)
      : row_(static_cast<std::size_t>(largest_n) * 4 + 64), out_(static_cast<std::size_t>(largest_n) + 64),
        scales_(static_cast<std::size_t>(largest_n) / 32 + 64) {}

  void check(DataType type, std::int64_t n, Mix mix, std::size_t shift, bool at_end) {
    const auto elements = static_cast<std::size_t>(n);
    auto* row = at_end ? row_.last(elements * static_cast<std::size_t>(size_of(type))) : row_.first() + shift;
    auto* out = at_end ? out_.last(elements) : out_.first() + shift;
    fill_row(random_, row, type, n, mix);
    for (const Quantise form : {Quantise::e4m3, Quantise::e4m3_power_of_two}) {
      const Quantised want = reference(row, type, n, form);
      auto* scales = at_end ? scales_.last(want.scales.size()) : scales_.first();
      out_.fill(0xa5);
      scales_.fill(0xa5);
      sluice::cpu::quantise_row(out, scales, row, type, n, form);
      const Quantised got{{out, out + n}, {scales, scales + want.scales.size()}};
      ASSERT_EQ(got, want) << name_of(type) << ", n " << n << ", form " << static_cast<int>(form);
      ASSERT_EQ(out_.touched_outside(out, elements, 0xa5), 0u);
      ASSERT_EQ(scales_.touched_outside(scales, want.scales.size(), 0xa5), 0u);
    }
  }

 private:
  Guarded row_, out_, scales_;
  std::mt19937 random_{9};
};

TEST(V4, quantised_rows_have_the_defined_bits_for_every_length_and_type) {
  QuantiseTest test(300);
  on_every_target([&] {
    for (const DataType type : float_types) {
      for (std::int64_t n = 1; n <= 300 && !testing::Test::HasFatalFailure(); ++n) {
        test.check(type, n, Mix::any_bits, 0, true);
        test.check(type, n, Mix::ordinary, static_cast<std::size_t>(n) % 64, false);
      }
    }
  });
}

TEST(V4, quantised_rows_have_the_defined_bits_at_typical_sizes) {
  QuantiseTest test(7168);
  on_every_target([&] {
    for (const DataType type : float_types) {
      for (const std::int64_t n : {2880, 3584, 4096, 5120, 6144, 7168}) test.check(type, n, Mix::ordinary, 0, true);
    }
  });
}

// Every bf16 and fp16 value beside a fixed largest element, so that the whole range of e4m3 is crossed.
TEST(V4, every_value_is_quantised_alike_on_every_target) {
  std::vector<std::uint16_t> row;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    if (row.size() % 128 == 0) row.push_back(0x43e0);
    row.push_back(static_cast<std::uint16_t>(bits));
  }
  const auto n = static_cast<std::int64_t>(row.size());
  std::vector<std::uint8_t> out(row.size()), scales(row.size());
  on_every_target([&] {
    for (const DataType type : {DataType::bf16, DataType::fp16}) {
      for (const Quantise form : {Quantise::e4m3, Quantise::e4m3_power_of_two}) {
        sluice::cpu::quantise_row(out.data(), scales.data(), row.data(), type, n, form);
        ASSERT_EQ(out, reference(row.data(), type, n, form).elements);
      }
    }
  });
}

TEST(V4, floats_near_every_halfway_point_of_e4m3_are_quantised_alike) {
  std::vector<float> row;
  const auto add = [&](float x) {
    if (row.size() % 128 == 0) row.push_back(448.0f);  // so that the factor is 1
    row.push_back(x);
  };
  for (std::uint32_t code = 0; code < 0x7e; ++code) {
    const float low = numbers::float_of_e4m3(static_cast<std::uint8_t>(code));
    const float half = (low + numbers::float_of_e4m3(static_cast<std::uint8_t>(code + 1))) / 2;
    for (const float x : {low, half, std::nextafter(half, 0.0f), std::nextafter(half, 500.0f)}) {
      add(x);
      add(-x);
    }
  }
  const auto n = static_cast<std::int64_t>(row.size());
  std::vector<std::uint8_t> out(row.size()), scales(row.size());
  on_every_target([&] {
    sluice::cpu::quantise_row(out.data(), scales.data(), row.data(), DataType::fp32, n, Quantise::e4m3);
    for (std::size_t i = 0; i < row.size(); ++i) ASSERT_EQ(out[i], numbers::e4m3_of_float(row[i])) << row[i];
  });
}

TEST(V6, a_row_of_zeros_infinities_or_nans_has_finite_scales) {
  on_every_target([] {
    for (const unsigned pattern : {0x0000u, 0x8000u, 0x7f80u, 0xff80u, 0x7fc1u}) {
      const auto bits = static_cast<std::uint16_t>(pattern);
      std::vector<std::uint16_t> row(256, bits);
      std::uint8_t out[256];
      float scales[2];
      sluice::cpu::quantise_row(out, scales, row.data(), DataType::bf16, 256, Quantise::e4m3);
      const std::uint8_t want = numbers::e4m3_of_float(numbers::float_of_bf16(bits));
      for (const auto q : out) ASSERT_EQ(q, want);
      for (const float scale : scales) ASSERT_EQ(scale, numbers::quantise_scale(1e-4f));
    }
  });
}

}  // namespace
