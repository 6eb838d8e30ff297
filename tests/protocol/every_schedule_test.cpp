// The scripts of core under every schedule of small worlds.
#include <cstdio>

#include <gtest/gtest.h>

#include "protocol/explore.h"
#include "protocol/plans.h"

namespace sluice::protocol {
namespace {

Found explore(const Plan& plan, Limits limits = {}) {
  Scenario scenario(plan);
  Found found = Explorer(scenario, limits).run();
  std::printf("%llu states, %llu transitions, %llu ends, %d blocks reused, %.1f s%s\n", static_cast<unsigned long long>(found.states),
              static_cast<unsigned long long>(found.transitions), static_cast<unsigned long long>(found.ends), scenario.reused_blocks(),
              found.seconds, found.complete ? "" : " (not all)");
  return found;
}

void expect_right(const Found& found) {
  EXPECT_EQ(found.error, "") << found.text();
  EXPECT_TRUE(found.complete);
}

TEST(protocol, from_environment) {
  if (!getenv("P_R")) GTEST_SKIP();
  Plan plan = plan_of(atoi(getenv("P_R")), atoi(getenv("P_C")), getenv("P_OPS"));
  if (getenv("P_ARENA")) plan.arena_bytes = atoi(getenv("P_ARENA"));
  if (getenv("P_EXACT")) plan.exact = true;
  if (getenv("P_GATHER")) plan.gathers = true;
  if (getenv("P_REFUSE")) plan.refusing_rank = 1;
  if (getenv("P_EARLY")) plan.frees_inputs_at_ready = true;
  if (getenv("P_ORDER")) plan.channel_order = {{0, 1}, {1, 0}};
  Limits limits;
  limits.reduce = !getenv("P_FULL");
  if (getenv("P_GIVE")) limits.give_ups = atoi(getenv("P_GIVE"));
  if (getenv("P_DIE")) limits.dying_rank = atoi(getenv("P_DIE"));
  limits.most_states = 5000000;
  expect_right(explore(plan, limits));
}

TEST(protocol, every_schedule_2_ranks_1_channel_D) { expect_right(explore(plan_of(2, 1, "D"))); }
TEST(protocol, every_schedule_2_ranks_1_channel_D_full) { expect_right(explore(plan_of(2, 1, "D"), {.reduce = false})); }
TEST(protocol, every_schedule_2_ranks_1_channel_DCD) { expect_right(explore(plan_of(2, 1, "DCD"))); }
TEST(protocol, every_schedule_2_ranks_2_channels_DCD) { expect_right(explore(plan_of(2, 2, "DCD"))); }

}  // namespace
}  // namespace sluice::protocol
