// Ranks that give up at any moment, or stop for ever, under every schedule: nobody hangs, nobody is told
// of a success that is none, counts stay 0 and ids -1 (promises F1, F2, F8).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "protocol/explore.h"
#include "protocol/plans.h"

namespace sluice::protocol {
namespace {

void expect_right(const Plan& plan, const Limits& limits, bool all = true) {
  Scenario scenario(plan);
  const Found found = Explorer(scenario, limits).run();
  std::printf("%llu states, %llu transitions, %llu ends, %.1f s%s\n",
              static_cast<unsigned long long>(found.states),
              static_cast<unsigned long long>(found.transitions), static_cast<unsigned long long>(found.ends),
              found.seconds, found.complete ? "" : " (not all)");
  EXPECT_EQ(found.error, "") << found.text();
  EXPECT_TRUE(found.complete || !all);
}

bool is_long() { return std::getenv("SLUICE_LONG") != nullptr; }
std::uint64_t most() { return is_long() ? 30'000'000 : std::getenv("SLUICE_REDUCED") ? 200'000 : 2'000'000; }

TEST(protocol, one_gives_up_at_any_moment_2_ranks) {
  for (const char* ops : {"D", "DD", "DC"}) expect_right(plan_of(2, 1, ops), {.give_ups = 1});
}

TEST(protocol, one_gives_up_at_any_moment_without_reduction) {
  expect_right(plan_of(2, 1, "D"), {.reduce = false, .give_ups = 1});
}

TEST(protocol, both_give_up_at_any_moment) {
  for (const char* ops : {"D", "DC"}) expect_right(plan_of(2, 1, ops), {.give_ups = 2});
}

TEST(protocol, a_rank_dies_at_any_moment) {
  for (const char* ops : {"D", "DC"}) expect_right(plan_of(2, 1, ops), {.give_ups = 1, .dying_rank = 1});
}

// Not exhaustive: as far as the number of states allows, 30 million with SLUICE_LONG=1.
TEST(protocol, one_gives_up_at_any_moment_3_ranks_in_part) {
  expect_right(plan_of(3, 1, "D"), {.give_ups = 1, .most_states = most()}, false);
}

TEST(protocol, one_gives_up_at_any_moment_2_channels_with_a_tight_arena) {
  Plan plan = plan_of(2, 2, "D");
  plan.arena_bytes = 2560;
  expect_right(plan, {.give_ups = 1, .most_states = most()}, !std::getenv("SLUICE_REDUCED"));
}

}  // namespace
}  // namespace sluice::protocol
