// Rows that are padding may hold anything when they are handed to combine: nobody adds them.
#include <gtest/gtest.h>
#include <sluice/sluice.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace sluice {
namespace {

constexpr std::int64_t tokens = 5, hidden = 8, topk = 2, capacity = 24;
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// One dispatch and combine of one rank; all that no token filled is NaN, weights too.
void expect_home(Layout layout, Counts counts, bool single_rounding) {
  Communicator comm(Group::threads(1)[0], {.max_tokens = tokens, .experts = 3, .hidden = hidden, .topk = topk,
                                           .dtype = DataType::fp32, .layout = layout, .alignment = 4, .capacity = capacity});
  std::vector<float> x(tokens * hidden, 3.0f), weights(tokens * topk, 0.5f);
  std::vector<std::int32_t> ids{0, 1, 0, 2, -1, 1, 1, 0, -1, -1};
  const bool packed = layout == Layout::packed;
  const auto sent = comm.dispatch({.rows = {x.data(), DataType::fp32, tokens, hidden},
                                   .expert_ids = {ids.data(), DataType::int32, tokens, topk},
                                   .weights = {weights.data(), DataType::fp32, tokens, topk},
                                   .layout = layout, .counts = counts,
                                   .capacity = counts == Counts::bounded || layout == Layout::padded ? capacity : 0,
                                   .alignment = layout == Layout::grouped ? 4 : 1});
  sent.ready.wait();
  const std::int64_t rows = sent.rows.elements() / hidden;
  std::vector<float> back(static_cast<std::size_t>(rows * hidden), nan), factors(static_cast<std::size_t>(rows), nan);
  const std::int64_t* const offsets = sent.offsets.as<std::int64_t>();
  const std::int32_t* const filled = sent.counts.as<std::int32_t>();
  for (int part = 0; part < (packed ? 1 : 3); ++part) {
    const std::int64_t first = offsets[part], count = packed ? offsets[1] : filled[part];
    for (std::int64_t row = first; row < first + count; ++row) {
      for (std::int64_t i = 0; i < hidden; ++i) back[static_cast<std::size_t>(row * hidden + i)] = 3.0f;
      factors[static_cast<std::size_t>(row)] = 0.5f;
    }
  }
  CombineArgs args{.rows = {back.data(), DataType::fp32, rows, hidden}, .route = sent.route,
                   .weights = {factors.data(), DataType::fp32, rows}, .single_rounding = single_rounding};
  if (layout == Layout::padded) {
    args.rows = {back.data(), DataType::fp32, 3, capacity, hidden};
    args.weights = {factors.data(), DataType::fp32, 3, capacity};
  }
  const auto home = comm.combine(args);
  home.ready.wait();
  const float chosen[] = {2, 2, 1, 2, 0};  // experts of each token
  for (std::int64_t i = 0; i < tokens * hidden; ++i) {
    const float rows_of_token = packed ? std::min(1.0f, chosen[i / hidden]) : chosen[i / hidden];
    EXPECT_EQ(home.rows.as<float>()[i], 1.5f * rows_of_token) << name_of(layout) << " element " << i;
  }
}

TEST(padding, handed_to_combine_may_hold_anything) {
  for (const bool single_rounding : {false, true}) {
    for (const Counts counts : {Counts::exact, Counts::bounded}) {
      for (const Layout layout : {Layout::packed, Layout::grouped, Layout::padded}) expect_home(layout, counts, single_rounding);
    }
  }
}

}  // namespace
}  // namespace sluice
