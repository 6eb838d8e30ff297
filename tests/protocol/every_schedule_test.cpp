// The scripts of core under every schedule of small worlds.
#include <cstdio>

#include <gtest/gtest.h>

#include "protocol/explore.h"

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

Plan plan_of(int ranks, int channels, const char* ops) {
  Plan plan;
  plan.ranks = ranks;
  plan.channels = channels;
  plan.ops = ops;
  return plan;
}

void expect_right(const Found& found) {
  EXPECT_EQ(found.error, "") << found.text();
  EXPECT_TRUE(found.complete);
}

TEST(protocol, every_schedule_2_ranks_1_channel_D) { expect_right(explore(plan_of(2, 1, "D"))); }
TEST(protocol, every_schedule_2_ranks_1_channel_D_full) { expect_right(explore(plan_of(2, 1, "D"), {.reduce = false})); }
TEST(protocol, every_schedule_2_ranks_1_channel_DCD) { expect_right(explore(plan_of(2, 1, "DCD"))); }
TEST(protocol, every_schedule_2_ranks_2_channels_DCD) { expect_right(explore(plan_of(2, 2, "DCD"))); }

}  // namespace
}  // namespace sluice::protocol
