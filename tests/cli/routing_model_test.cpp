// The generators of router decisions, against the figures that they are fitted to.
#include "cli/routing_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "cli/gate.h"
#include "cli/random.h"

namespace sluice::cli {
namespace {

RoutingModel model_of(const std::string& text) {
  RoutingModel model;
  EXPECT_TRUE(parse_routing_model(text, model)) << text;
  return model;
}

TEST(routing_model, names_are_read_strictly) {
  RoutingModel model;
  for (const char* text :
       {"uniform", "zipf:0", "zipf:1.2", "lognormal:0.5", "deepseek", "olmoe", "qwen", "mixtral"}) {
    EXPECT_TRUE(parse_routing_model(text, model)) << text;
  }
  for (const char* text :
       {"", "Uniform", "zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:1x", "zipf:nan", "lognormal", "olmoe:1"}) {
    EXPECT_FALSE(parse_routing_model(text, model)) << text;
  }
}

TEST(routing_model, every_token_gets_k_distinct_experts_and_falling_weights_of_sum_1) {
  for (const char* text : {"uniform", "zipf:1.5", "lognormal:2", "deepseek", "olmoe", "qwen", "mixtral"}) {
    for (const auto& [experts, topk] : {std::pair{8, 2}, {60, 4}, {256, 8}, {7, 7}, {1, 1}, {2048, 32}}) {
      const Decisions d = generate(model_of(text), experts, topk, 50, 3);
      ASSERT_EQ(d.tokens(), 50);
      for (std::int64_t t = 0; t < 50; ++t) {
        const auto* ids = d.ids.data() + t * topk;
        const auto* weights = d.weights.data() + t * topk;
        const std::set<std::int32_t> distinct(ids, ids + topk);
        ASSERT_EQ(distinct.size(), static_cast<std::size_t>(topk)) << text << " E " << experts;
        ASSERT_GE(*distinct.begin(), 0);
        ASSERT_LT(*distinct.rbegin(), experts);
        ASSERT_TRUE(std::is_sorted(weights, weights + topk, std::greater<>()));
        const float sum = std::accumulate(weights, weights + topk, 0.0F);
        ASSERT_NEAR(sum, std::string_view(text) == "deepseek" ? 2.5F : 1.0F, 1e-5F);
      }
    }
  }
}

// The same numbers on every machine: a change of the generator is a change of every published measurement.
TEST(routing_model, a_seed_gives_the_same_decisions_for_ever) {
  const auto digest = [](const char* text, int experts, int topk) {
    std::uint64_t sum = 0;
    for (const std::int32_t id : generate(model_of(text), experts, topk, 100, 1).ids)
      sum = mix(sum, static_cast<std::uint64_t>(id));
    return sum;
  };
  EXPECT_EQ(digest("uniform", 256, 8), digest("uniform", 256, 8));
  EXPECT_EQ(generate(model_of("uniform"), 8, 2, 4, 1).ids,
            (std::vector<std::int32_t>{6, 5, 7, 3, 4, 2, 0, 1}));
  EXPECT_NE(generate(model_of("uniform"), 256, 8, 100, 1).ids,
            generate(model_of("uniform"), 256, 8, 100, 2).ids);
  EXPECT_NE(generate(model_of("uniform"), 256, 8, 100, 1, 0).ids,
            generate(model_of("uniform"), 256, 8, 100, 1, 1).ids);
}

struct Published {
  const char* name;
  double max_over_mean;
  double entropy_bits;
  double rank8_rows;
  double ranks_per_token;
};

TEST(routing_model, fitted_models_have_the_published_skew) {
  for (const Published& p : {Published{"olmoe", 5.31, 5.749, 1.171, 5.59},
                             {"qwen", 1.49, 5.886, 1.132, 3.37},
                             {"mixtral", 1.78, 2.929, 1.780, 2.00}}) {
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      const RoutingModel model = model_of(p.name);
      const int experts = natural_experts(model);
      const Decisions d = generate(model, experts, natural_topk(model), 20'000, seed);
      const Skew skew = skew_of(rows_per_expert(d, experts));
      EXPECT_NEAR(skew.max_over_mean, p.max_over_mean, 0.05 * p.max_over_mean) << p.name;
      EXPECT_NEAR(skew.entropy_bits, p.entropy_bits, 0.02) << p.name;
      std::vector<int> first;  // eight ranks, the last with fewer, as the published figures were computed
      for (int r = 0; r <= 8; ++r) first.push_back(std::min(experts, r * ((experts + 7) / 8)));
      const auto rows = rows_per_rank(d, first);
      EXPECT_NEAR(skew_of(rows).max_over_mean, p.rank8_rows, 0.04 * p.rank8_rows) << p.name;
      const double ranks =
          static_cast<double>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})) / 20'000;
      EXPECT_NEAR(ranks, p.ranks_per_token, 0.05 * p.ranks_per_token) << p.name;
    }
  }
}

TEST(routing_model, loads_follow_the_popularity) {
  const auto p = inclusion({8, 4, 2, 1, 1}, 1);
  EXPECT_NEAR(static_cast<double>(p[0]) * 0x1p-32, 0.5, 1e-9);
  const auto capped = inclusion({100, 1, 1, 1}, 2);
  EXPECT_EQ(capped[0], std::uint64_t{1} << 32);
  for (const auto& units :
       {p, capped, inclusion({1, 0, 0, 0}, 3), inclusion(popularity(model_of("zipf:3"), 512, 1), 22)}) {
    const std::uint64_t sum = std::accumulate(units.begin(), units.end(), std::uint64_t{0});
    EXPECT_EQ(sum % (std::uint64_t{1} << 32), 0u);
  }
  const Decisions d = generate(model_of("zipf:1"), 16, 2, 20'000, 5);
  auto loads = rows_per_expert(d, 16);
  std::sort(loads.begin(), loads.end(), std::greater<>());
  EXPECT_NEAR(static_cast<double>(loads[1]) / static_cast<double>(loads[3]), 2.0, 0.1);
}

TEST(gate, keeps_the_best_groups_then_the_best_experts) {
  const GateShape shape{.experts = 8, .topk = 2, .groups = 4, .groups_kept = 2, .scaling = 1};
  // Group 0 has the single best expert, but groups 1 and 3 the best pairs.
  const float logits[] = {3.0F, -9.0F, 2.0F, 1.0F, -9.0F, -9.0F, 1.5F, 2.5F};
  std::int32_t ids[2];
  float weights[2];
  choose_experts(shape, logits, ids, weights);
  EXPECT_EQ(ids[0], 7);
  EXPECT_EQ(ids[1], 2);
  const double a = 1 / (1 + std::exp(-2.5));
  const double b = 1 / (1 + std::exp(-2.0));
  EXPECT_NEAR(weights[0], a / (a + b), 1e-6);
  EXPECT_NEAR(weights[1], b / (a + b), 1e-6);
}

TEST(gate, ties_go_to_the_lower_expert) {
  const float logits[8] = {};
  std::int32_t ids[3];
  float weights[3];
  choose_experts(deepseek_gate(8, 3), logits, ids, weights);
  EXPECT_EQ(std::vector<std::int32_t>(ids, ids + 3), (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(gate, fits_any_number_of_experts) {
  EXPECT_EQ(deepseek_gate(256, 8).groups, 8);
  EXPECT_EQ(deepseek_gate(256, 8).groups_kept, 4);
  EXPECT_EQ(deepseek_gate(60, 4).groups, 4);
  EXPECT_EQ(deepseek_gate(7, 7).groups, 1);
  for (int experts = 1; experts <= 64; ++experts) {
    for (int topk = 1; topk <= experts; ++topk) {
      const GateShape shape = deepseek_gate(experts, topk);
      ASSERT_EQ(experts % shape.groups, 0);
      ASSERT_GE(shape.groups_kept * (experts / shape.groups), topk);
    }
  }
}

}  // namespace
}  // namespace sluice::cli
