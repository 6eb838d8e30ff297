// The scripts of core under every schedule of small worlds.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "protocol/explore.h"
#include "protocol/plans.h"

namespace sluice::protocol {
namespace {

Found explore(const Plan& plan, Limits limits = {}) {
  Scenario scenario(plan);
  Found found = Explorer(scenario, limits).run();
  std::printf("%llu states, %llu transitions, %llu ends, %d blocks reused, %.1f s%s\n",
              static_cast<unsigned long long>(found.states),
              static_cast<unsigned long long>(found.transitions), static_cast<unsigned long long>(found.ends),
              scenario.reused_blocks(), found.seconds, found.complete ? "" : " (not all)");
  return found;
}

void expect_right(const Found& found) {
  EXPECT_EQ(found.error, "") << found.text();
  EXPECT_TRUE(found.complete);
}

bool is_long() { return std::getenv("SLUICE_LONG") != nullptr; }

TEST(protocol, every_schedule_2_ranks_2_channels_DCD) { expect_right(explore(plan_of(2, 2, "DCD"))); }
TEST(protocol, every_schedule_2_ranks_2_channels_DDC) { expect_right(explore(plan_of(2, 2, "DDC"))); }
TEST(protocol, every_schedule_2_ranks_2_channels_DCC) { expect_right(explore(plan_of(2, 2, "DCC"))); }
TEST(protocol, every_schedule_3_ranks_2_channels_DCD) { expect_right(explore(plan_of(3, 2, "DCD"))); }
TEST(protocol, every_schedule_3_ranks_2_channels_DDC) { expect_right(explore(plan_of(3, 2, "DDC"))); }
TEST(protocol, every_schedule_3_ranks_2_channels_DCC) { expect_right(explore(plan_of(3, 2, "DCC"))); }
TEST(protocol, every_schedule_3_ranks_1_channel_DCDDCC) { expect_right(explore(plan_of(3, 1, "DCDDCC"))); }

// Nothing is left out: every order of every two steps.
TEST(protocol, every_schedule_without_reduction_2_ranks_1_channel) {
  for (const char* ops : {"DCD", "DDC", "DCC"}) expect_right(explore(plan_of(2, 1, ops), {.reduce = false}));
}
TEST(protocol, every_schedule_without_reduction_2_ranks_2_channels_D) {
  expect_right(explore(plan_of(2, 2, "D"), {.reduce = false}));
}
TEST(protocol, every_schedule_without_reduction_3_ranks_1_channel_D) {
  if (!is_long()) GTEST_SKIP() << "SLUICE_LONG=1 runs it: 4.8 million states";
  expect_right(explore(plan_of(3, 1, "D"), {.reduce = false}));
}

TEST(protocol, every_schedule_with_inputs_outside_the_arena) {
  for (const int ranks : {2, 3}) {
    Plan plan = plan_of(ranks, 2, "DCC");
    plan.gathers = true;
    expect_right(explore(plan));
  }
}

TEST(protocol, every_schedule_with_exact_counts) {
  for (const int ranks : {2, 3}) {
    Plan plan = plan_of(ranks, 2, "DCD");
    plan.exact = true;
    expect_right(explore(plan));
  }
}

// Two routes, three calls each, the channels called in another order on each rank (cases.md 21).
TEST(protocol, every_schedule_with_channels_in_another_order) {
  for (const char* ops : {"DCD", "DDC", "DCC"}) {
    Plan plan = plan_of(2, 2, ops);
    plan.channel_order = {{0, 1}, {1, 0}};
    plan.arena_bytes = 16384;
    expect_right(explore(plan));
  }
}

// The same where memory is short: each rank's second channel waits for memory of its first, crosswise. So
// with little memory the order of calls over the channels must be the same on all ranks, bounded or not.
TEST(protocol, channels_in_another_order_need_memory_for_both) {
  Plan plan = plan_of(2, 2, "DDC");
  plan.channel_order = {{0, 1}, {1, 0}};
  EXPECT_EQ(explore(plan).error.substr(0, 8), "deadlock");
}

// Memory for hardly more than one operation at a time.
TEST(protocol, every_schedule_with_a_tight_arena) {
  for (const int ranks : {2, 3}) {
    Plan plan = plan_of(ranks, 2, "DDD");
    plan.arena_bytes = ranks == 2 ? 3072 : 4096;
    expect_right(explore(plan));
  }
}

TEST(protocol, every_schedule_with_a_refused_call) {
  for (const int refused : {0, 1, 2}) {
    Plan plan = plan_of(3, 2, "DCD");
    plan.refusing_rank = 1;
    plan.refused_operation = refused;
    expect_right(explore(plan));
  }
}

}  // namespace
}  // namespace sluice::protocol
