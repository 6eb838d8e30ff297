// The layer of the demo and its comparison with the dense one.
#include "cli/moe_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "cli/numbers.h"

namespace sluice::cli {
namespace {

constexpr LayerShape shape{.experts = 6, .topk = 3, .hidden = 32, .inner = 16, .seed = 5};

// The layer in one place with a rounding to bf16 per expert, per rank and per token.
std::vector<std::uint16_t> layer(const std::vector<int>& first, const std::vector<std::uint16_t>& x,
                                 const Decisions& d) {
  std::vector<std::uint16_t> out(x.size());
  const auto owner = owners(first);
  std::vector<std::uint16_t> y(shape.hidden);
  for (std::int64_t t = 0; t < d.tokens(); ++t) {
    std::vector<float> sum(shape.hidden, 0.0F);
    for (int r = 0; r + 1 < static_cast<int>(first.size()); ++r) {
      std::vector<float> partial(shape.hidden, 0.0F);
      for (int e = first[r]; e < first[r + 1]; ++e) {
        for (int j = 0; j < d.topk; ++j) {
          if (d.ids[t * d.topk + j] != e) continue;
          Expert(shape, e).forward(x.data() + t * shape.hidden, y.data());
          for (int h = 0; h < shape.hidden; ++h) partial[h] += d.weights[t * d.topk + j] * from_bf16(y[h]);
        }
      }
      for (int h = 0; h < shape.hidden; ++h) sum[h] += from_bf16(to_bf16(partial[h]));
    }
    for (int h = 0; h < shape.hidden; ++h) out[t * shape.hidden + h] = to_bf16(sum[h]);
  }
  return out;
}

struct Fixture {
  std::vector<int> first = split_experts(shape.experts, 4);
  std::vector<std::uint16_t> x = make_tokens(shape, 0, 50);
  Decisions d = Router(shape).route(x);
  std::vector<std::uint16_t> out = layer(first, x, d);
  Comparison compare() const { return compare_with_dense(shape, first, x, d, out); }
};

TEST(moe_layer, right_outputs_are_within_the_tolerance) {
  const Comparison c = Fixture().compare();
  EXPECT_TRUE(c.ok);
  EXPECT_EQ(c.wrong, 0);
  EXPECT_GT(c.max_error, 0);
  EXPECT_LE(c.max_error, c.tolerance);
  EXPECT_LT(c.tolerance, 0.2);  // tight enough to tell something
}

TEST(moe_layer, infinities_are_right_only_where_the_sum_leaves_the_range) {
  Fixture large;
  large.d.weights[7 * large.d.topk] = 3e38F;  // of token 7 alone
  large.out = layer(large.first, large.x, large.d);
  const auto of_seven = large.out.begin() + 7 * shape.hidden;
  const auto infinite = std::count_if(of_seven, of_seven + shape.hidden,
                                      [](std::uint16_t bits) { return !std::isfinite(from_bf16(bits)); });
  ASSERT_GT(infinite, 0);
  EXPECT_TRUE(large.compare().ok);
  EXPECT_EQ(large.compare().overflowed, infinite);
  large.out[8 * shape.hidden] = 0x7F80;
  EXPECT_FALSE(large.compare().ok);
  EXPECT_EQ(large.compare().wrong, 1);
}

TEST(moe_layer, a_swapped_token_a_lost_expert_and_a_nan_are_wrong) {
  const Fixture good;
  Fixture swapped = good;
  std::swap_ranges(swapped.out.begin(), swapped.out.begin() + shape.hidden,
                   swapped.out.begin() + shape.hidden);
  EXPECT_FALSE(swapped.compare().ok);
  Fixture lost = good;
  lost.d.weights[lost.d.topk * 7 + 1] = 0;
  lost.out = layer(lost.first, lost.x, lost.d);
  lost.d = good.d;
  const Comparison c = lost.compare();
  EXPECT_FALSE(c.ok);
  EXPECT_GT(c.max_error, c.tolerance);
  EXPECT_GT(c.wrong, 0);
  Fixture nan = good;
  nan.out[123] = 0x7FC0;
  EXPECT_FALSE(nan.compare().ok);
  EXPECT_EQ(nan.compare().wrong, 1);
  Fixture short_one = good;
  short_one.out.pop_back();
  EXPECT_FALSE(short_one.compare().ok);
}

TEST(moe_layer, an_expert_is_swiglu) {
  const Expert expert(shape, 2);
  const auto x = make_tokens(shape, 9, 1);
  std::vector<std::uint16_t> fast(shape.hidden);
  std::vector<double> exact(shape.hidden);
  std::vector<double> error(shape.hidden);
  expert.forward(x.data(), fast.data());
  expert.exact(x.data(), exact.data(), error.data());
  for (int h = 0; h < shape.hidden; ++h) {
    EXPECT_LT(error[h], 1e-3);
    EXPECT_LE(std::fabs(from_bf16(fast[h]) - exact[h]), error[h] + 0x1p-8 * std::fabs(exact[h]));
  }
}

TEST(moe_layer, tokens_do_not_depend_on_how_they_are_shared_out) {
  const auto all = make_tokens(shape, 0, 10);
  const auto part = make_tokens(shape, 4, 3);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 4 * shape.hidden));
}

TEST(numbers, conversions_round_to_nearest_even) {
  EXPECT_EQ(to_bf16(1.0F), 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_EQ(to_bf16(NAN), 0x7FC0);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<std::uint16_t>(bits);
    if ((h & 0x7C00) == 0x7C00 && (h & 0x3FF) != 0) continue;
    ASSERT_EQ(to_fp16(from_fp16(h)), h);
  }
  EXPECT_EQ(to_fp16(65519.0F), 0x7BFF);
  EXPECT_EQ(to_fp16(65520.0F), 0x7C00);
  EXPECT_EQ(to_fp16(0x1p-25F), 0);
  EXPECT_EQ(to_e4m3(448.0F), 0x7E);
  EXPECT_EQ(to_e4m3(1e9F), 0x7E);
  EXPECT_EQ(to_e4m3(-INFINITY), 0xFE);
  EXPECT_EQ(to_e4m3(1.0F), 0x38);
  EXPECT_EQ(to_e4m3(1.0625F), 0x38);  // half way, to even
  EXPECT_EQ(to_e4m3(1.1875F), 0x3A);
  EXPECT_EQ(to_e4m3(0x1p-9F), 0x01);
  EXPECT_EQ(to_e4m3(0x1p-10F), 0x00);
  EXPECT_EQ(to_e4m3(NAN), 0x7F);
}

TEST(decisions, counts_rows_per_rank_and_expert) {
  Decisions d;
  d.topk = 3;
  d.ids = {0, 1, 5, 2, -1, 3, -1, -1, -1};
  d.weights.assign(9, 1.0F);
  EXPECT_EQ(split_experts(7, 3), (std::vector<int>{0, 3, 5, 7}));
  EXPECT_EQ(split_experts(2, 4), (std::vector<int>{0, 1, 2, 2, 2}));
  EXPECT_EQ(rows_per_rank(d, {0, 2, 4, 6}), (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(rows_per_expert(d, 6), (std::vector<std::int64_t>{1, 1, 1, 1, 0, 1}));
  const Decisions part = slice(d, 2, 2);
  EXPECT_EQ(part.ids, (std::vector<std::int32_t>{-1, -1, -1, 0, 1, 5}));
  EXPECT_NEAR(skew_of({1, 1, 2}).max_over_mean, 1.5, 1e-12);
  EXPECT_NEAR(skew_of({1, 1, 1, 1}).entropy_bits, 2, 1e-12);
}

// A rank is counted once per token even when its experts are not neighbours.
TEST(decisions, a_rank_counts_once_per_token) {
  Decisions d;
  d.topk = 3;
  d.ids = {0, 5, 1};
  d.weights.assign(3, 1.0F);
  EXPECT_EQ(rows_per_rank(d, {0, 2, 4, 6}), (std::vector<std::int64_t>{1, 0, 1}));
}

}  // namespace
}  // namespace sluice::cli
