// The oracle itself: its numbers against their definitions, and that it says no to what is wrong.
#include "oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace conformance {
namespace {

Recipe small(Layout layout) {
  Recipe recipe;
  recipe.ranks = 3;
  recipe.experts = 9;
  recipe.tokens = {5, 0, 8};
  recipe.call.layout = layout;
  recipe.call.alignment = layout == Layout::grouped ? 4 : 1;
  recipe.call.scales = 3;
  recipe.call.zero_padding = true;
  return recipe;
}

Image image_of(const Problem& p, int rank) {
  const Arrivals arrivals = arrivals_at(p, rank);
  if (p.call.layout == Layout::padded)
    return expected_image(p, arrivals, rank, 20 * p.local_experts(rank), 20);
  return expected_image(p, arrivals, rank, arrivals.end, 0);
}

TEST(oracle, accepts_what_it_expects) {
  for (Layout layout : layouts) {
    const Problem p = make_problem(small(layout));
    EXPECT_TRUE(compare(p, image_of(p, 0), image_of(p, 0)).empty());
  }
}

TEST(oracle, rejects_every_kind_of_wrong_dispatch) {
  for (Layout layout : layouts) {
    const Problem p = make_problem(small(layout));
    const Image right = image_of(p, 0);
    std::int64_t filled = 0, empty = -1;
    while (!right.filled[static_cast<std::size_t>(filled)]) ++filled;
    for (std::int64_t n = 0; n < right.rows; ++n)
      if (!right.filled[static_cast<std::size_t>(n)]) empty = n;
    const auto rejects = [&](const char* what, auto&& spoil) {
      Image wrong = right;
      spoil(wrong);
      EXPECT_FALSE(compare(p, right, wrong).empty()) << what;
    };
    rejects("one bit of a row",
            [&](Image& i) { i.data[static_cast<std::size_t>(filled * i.row_bytes + 7)] ^= std::byte{1}; });
    rejects("one bit of a scale",
            [&](Image& i) { i.scales[static_cast<std::size_t>(filled * i.scale_bytes)] ^= std::byte{1}; });
    rejects("a count", [](Image& i) { ++i.counts[0]; });
    rejects("an aligned count", [](Image& i) { ++i.aligned_counts[1]; });
    rejects("an offset", [](Image& i) { --i.offsets.back(); });
    rejects("the number of rows", [](Image& i) { ++i.num_rows; });
    rejects("the number of dropped rows", [](Image& i) { ++i.dropped; });
    rejects("the host's numbers", [](Image& i) { ++i.host_per_source[2]; });
    rejects("a weight", [](Image& i) { i.weights.back() += 1.0f; });
    rejects("no weights", [](Image& i) { i.weights.clear(); });
    rejects("a row too few", [](Image& i) { --i.rows; });
    if (layout == Layout::packed) rejects("a local id", [](Image& i) { i.local_ids[0] ^= 1; });
    if (empty >= 0)
      rejects("padding that is not zero",
              [&](Image& i) { i.data[static_cast<std::size_t>(empty * i.row_bytes)] = std::byte{1}; });
  }
}

TEST(oracle, rejects_swapped_rows) {
  const Problem p = make_problem(small(Layout::packed));
  const Image right = image_of(p, 1);
  ASSERT_GE(right.rows, 2);
  Image wrong = right;
  std::swap_ranges(wrong.data.begin(), wrong.data.begin() + wrong.row_bytes,
                   wrong.data.begin() + wrong.row_bytes);
  EXPECT_FALSE(compare(p, right, wrong).empty());
}

TEST(oracle, rejects_every_kind_of_wrong_combine) {
  for (DataType type : {DataType::bf16, DataType::fp16, DataType::fp32}) {
    const Problem p = make_problem(small(Layout::grouped));
    CombineCall call;
    call.type = type;
    call.values = true;
    const Combined right = expected_combine(p, arrivals_of_all(p), call, 0);
    EXPECT_TRUE(compare(right, call, right.rows, right.values).empty());
    Bytes wrong = right.rows;
    wrong[40] ^= std::byte{1};  // one unit in the last place
    EXPECT_FALSE(compare(right, call, wrong, right.values).empty());
    std::vector<float> values = right.values;
    values[0] += 1.0f;
    EXPECT_FALSE(compare(right, call, right.rows, values).empty());
    // A sum in another place of the bound: the scalar sum itself is moved, so that the bits agree.
    Combined moved = right;
    moved.exact[11] += 3 * moved.tolerance[11] + 1e-30;
    EXPECT_FALSE(compare(moved, call, right.rows, right.values).empty());
  }
}

// One row too many, too few, or added in the element type, must leave the bound.
TEST(oracle, bound_is_tight_enough_to_see_a_lost_row) {
  const Problem p = make_problem(small(Layout::packed));
  CombineCall call;
  std::vector<Arrivals> all = arrivals_of_all(p);
  const Combined right = expected_combine(p, all, call, 2);
  std::vector<Arrivals> fewer = all;
  for (Arrivals& at : fewer)
    for (Arrival& a : at.list)
      if (a.source == 2 && a.token == 3) a.dropped = true;
  Combined wrong = expected_combine(p, fewer, call, 2);
  wrong.exact = right.exact;
  wrong.tolerance = right.tolerance;
  const Bytes rows = wrong.rows;
  EXPECT_FALSE(compare(wrong, call, rows, {}).empty());
}

TEST(numbers, conversions_round_to_nearest_even) {
  std::uint16_t half = 0;
  const auto bf16 = [&](float x) {
    from_float(DataType::bf16, x, &half);
    return half;
  };
  const auto fp16 = [&](float x) {
    from_float(DataType::fp16, x, &half);
    return half;
  };
  EXPECT_EQ(bf16(1.0f), 0x3f80);
  EXPECT_EQ(bf16(1.0f + 0x1p-8f), 0x3f80);  // a tie: to even
  EXPECT_EQ(bf16(1.0f + 0x3p-8f), 0x3f82);  // the other tie
  EXPECT_EQ(bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16(-0.0f), 0x8000);
  EXPECT_EQ(bf16(std::nanf("7")), 0x7fc0);
  EXPECT_EQ(fp16(65504.0f), 0x7bff);
  EXPECT_EQ(fp16(65519.9f), 0x7bff);
  EXPECT_EQ(fp16(65520.0f), 0x7c00);
  EXPECT_EQ(fp16(0x1p-24f), 0x0001);
  EXPECT_EQ(fp16(0x1p-25f), 0x0000);
  EXPECT_EQ(fp16(0x3p-25f), 0x0002);
  EXPECT_EQ(fp16(0x1p-14f), 0x0400);
}

TEST(numbers, every_16_bit_pattern_survives_a_round_trip) {
  for (DataType type : {DataType::bf16, DataType::fp16})
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      const float value = to_float(type, &half);
      if (std::isnan(value)) continue;
      std::uint16_t back = 1;
      from_float(type, value, &back);
      ASSERT_EQ(back, half) << sluice::name_of(type);
    }
}

TEST(numbers, e4m3_is_the_nearest_of_all_its_values) {
  Random random(3);
  for (int i = 0; i < 20000; ++i) {
    const float x = static_cast<float>(random.normal() * std::exp2(random.between(-12, 9)));
    std::uint8_t got = 0;
    from_float(DataType::e4m3, x, &got);
    double best = 1e9;
    for (int b = 0; b < 256; ++b) {
      const auto byte = static_cast<std::uint8_t>(b);
      const float value = to_float(DataType::e4m3, &byte);
      if (!std::isnan(value))
        best = std::min(best, std::fabs(static_cast<double>(value) - static_cast<double>(x)));
    }
    ASSERT_EQ(std::fabs(static_cast<double>(to_float(DataType::e4m3, &got)) - static_cast<double>(x)), best)
        << x;
  }
  std::uint8_t byte = 0;
  from_float(DataType::e4m3, -std::numeric_limits<float>::infinity(), &byte);
  EXPECT_EQ(byte, 0xfe);
  from_float(DataType::e4m3, std::nanf(""), &byte);
  EXPECT_EQ(byte, 0x7f);
}

}  // namespace
}  // namespace conformance
