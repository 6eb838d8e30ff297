// Each rule of the protocol, broken alone, is found: the explorer can fail. SLUICE_SHOW=1 prints the
// schedule that shows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "protocol/explore.h"
#include "protocol/mutations.h"
#include "protocol/plans.h"

namespace sluice::protocol {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

enum class Search { both, reduced, full };

void expect_found(const Plan& plan, const char* error, Search search = Search::both, Limits limits = {}) {
  limits.most_states = 20'000'000;
  for (const bool reduce : {true, false}) {
    if (reduce ? search == Search::full : search == Search::reduced) continue;
    limits.reduce = reduce;
    Scenario scenario(plan);
    const Found found = Explorer(scenario, limits).run();
    EXPECT_THAT(found.error, AllOf(HasSubstr(error), Not(HasSubstr("not declared")), Not(IsEmpty())))
        << found.text();
    if (std::getenv("SLUICE_SHOW")) std::printf("%s", found.text().c_str());
    std::printf("found after %llu states%s (%d blocks reused): %s\n",
                static_cast<unsigned long long>(found.states), reduce ? "" : " without reduction",
                scenario.reused_blocks(), found.error.c_str());
  }
}

Plan edited(Plan plan, void (*edit)(core::Script&, int)) {
  plan.mutation.edit = edit;
  return plan;
}

TEST(mutation, without_OPEN_the_page_is_read_too_early) {
  expect_found(edited(plan_of(2, 1, "DCD"), drop_open), "");
}
TEST(mutation, without_CLOSE_rows_are_read_too_early) {
  expect_found(edited(plan_of(2, 1, "DCD"), drop_close), "");
}
TEST(mutation, finish_before_CLOSE_reads_rows_too_early) {
  expect_found(edited(plan_of(2, 1, "D"), finish_before_close), "succeeds, but");
}

TEST(mutation, reset_after_signal_loses_a_signal) {
  Plan plan = plan_of(2, 1, "DCD");
  plan.mutation.resets_after_signal = true;
  expect_found(plan, "lost signal");
}

TEST(mutation, reset_not_ordered_with_the_signal_loses_a_signal) {
  Plan plan = plan_of(2, 1, "DCD");
  plan.mutation.memory.release_overtakes_resets = true;
  expect_found(plan, "lost signal");
}

TEST(mutation, counts_read_after_CLOSE_are_those_of_the_next_operation) {
  expect_found(edited(plan_of(2, 1, "DD"), read_counts_after_close), "fails, and nobody");
}

TEST(mutation, one_flag_for_both_stages_loses_a_signal) {
  Plan plan = plan_of(2, 1, "DCD");
  plan.mutation.one_flag_for_both_stages = true;
  expect_found(plan, "");
}

TEST(mutation, record_published_before_CLOSE_overwrites_the_page) {
  expect_found(edited(plan_of(2, 1, "DD"), publish_before_close), "fails, and nobody");
}

TEST(mutation, signal_before_the_record_lets_old_records_be_read) {
  expect_found(edited(plan_of(2, 1, "D"), signal_before_record), "");
}

TEST(mutation, signal_before_rows_lets_old_rows_be_read) {
  expect_found(edited(plan_of(2, 1, "D"), signal_before_rows), "succeeds, but");
}

TEST(mutation, without_a_fence_a_signal_overtakes_data) {
  Plan plan = plan_of(2, 1, "D");
  plan.mutation.memory.release_overtakes_all = true;
  expect_found(plan, "");
}

TEST(mutation, without_a_fence_gathered_inputs_are_read_too_early) {
  Plan plan = plan_of(2, 1, "DC");
  plan.gathers = true;
  plan.mutation.memory.release_overtakes_all = true;
  expect_found(plan, "");
}

TEST(mutation, streamed_rows_without_their_fence_are_read_too_early) {
  Plan plan = plan_of(2, 1, "D");
  plan.mutation.unfenced_rows = true;
  expect_found(plan, "succeeds, but");
}

TEST(mutation, block_reused_without_its_events_is_overwritten) {
  Plan plan = plan_of(2, 2, "DCD");
  plan.mutation.ignores_block_events = true;
  expect_found(plan, "succeeds", Search::reduced);
}

TEST(mutation, inputs_overwritten_when_the_sum_is_there) {
  Plan plan = plan_of(2, 1, "DCC");
  plan.frees_inputs_at_ready = true;
  expect_found(plan, "the sum is");
}

TEST(mutation, exact_calls_of_two_channels_in_another_order_deadlock) {
  Plan plan = plan_of(2, 2, "DCD");
  plan.exact = true;
  plan.channel_order = {{0, 1}, {1, 0}};
  expect_found(plan, "deadlock", Search::reduced);
}

TEST(mutation, failure_without_status_looks_like_success) {
  Plan plan = plan_of(2, 1, "D");
  plan.mutation.fails_silently = true;
  expect_found(plan, "succeeds", Search::both, {.give_ups = 1});
}

TEST(mutation, failure_that_ends_with_its_operation_looks_like_success) {
  Plan plan = plan_of(2, 1, "DD");
  plan.mutation.forgets_failure = true;
  expect_found(plan, "succeeds", Search::both, {.give_ups = 1});
}

TEST(mutation, status_after_the_flag_looks_like_success) {
  Plan plan = plan_of(2, 1, "D");
  plan.mutation.status_after_flag = true;
  expect_found(plan, "succeeds", Search::both, {.give_ups = 1});
}

TEST(mutation, memory_of_a_failed_operation_reused_is_overwritten) {
  Plan plan = plan_of(2, 2, "D");
  plan.arena_bytes = 2560;  // the second route lies where the first one lay
  plan.mutation.ignores_failed_blocks = true;
  expect_found(plan, "succeeds", Search::reduced, {.give_ups = 1});
}

}  // namespace
}  // namespace sluice::protocol
