// Long schedules at random: twenty operations on two channels, also with a rank that gives up somewhere.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "protocol/explore.h"
#include "protocol/plans.h"

namespace sluice::protocol {
namespace {

std::uint64_t first_seed() {
  const char* const given = std::getenv("SLUICE_SEED");
  return given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

int walks(int usual) {
  if (std::getenv("SLUICE_LONG")) return usual * 20;
  return std::getenv("SLUICE_REDUCED") ? usual / 20 : usual;
}

void expect_right(const Plan& plan, Limits limits, int count) {
  limits.reduce = false;
  const std::uint64_t seed = first_seed();
  std::printf("%d schedules, SLUICE_SEED=%llu\n", count, static_cast<unsigned long long>(seed));
  Scenario scenario(plan);
  Explorer explorer(scenario, limits);
  std::uint64_t transitions = 0;
  for (int i = 0; i < count; ++i) {
    const Found found = explorer.run_random(seed + static_cast<std::uint64_t>(i));
    transitions += found.transitions;
    ASSERT_EQ(found.error, "") << "seed " << seed + static_cast<std::uint64_t>(i) << "\n" << found.text();
  }
  std::printf("%llu transitions, %d blocks reused\n", static_cast<unsigned long long>(transitions),
              scenario.reused_blocks());
}

constexpr const char* twenty = "DCDDCCDCDCCDDDCDCCDC";

TEST(protocol, random_schedules_of_20_operations_3_ranks) {
  expect_right(plan_of(3, 2, twenty), {}, walks(1000));
}
TEST(protocol, random_schedules_of_20_operations_4_ranks) {
  expect_right(plan_of(4, 2, twenty), {}, walks(400));
}

TEST(protocol, random_schedules_with_exact_counts) {
  Plan plan = plan_of(3, 2, twenty);
  plan.exact = true;
  expect_right(plan, {}, walks(400));
}

TEST(protocol, random_schedules_with_a_rank_that_gives_up) {
  expect_right(plan_of(3, 2, "DCDDCC"), {.give_ups = 2}, walks(2000));
}

TEST(protocol, random_schedules_with_a_rank_that_dies) {
  expect_right(plan_of(3, 2, "DCD"), {.give_ups = 6, .dying_rank = 2}, walks(2000));
}

}  // namespace
}  // namespace sluice::protocol
