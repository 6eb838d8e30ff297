#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "doctor/synthetic.h"
#include "doctor/text.h"

namespace sluice::doctor::testing {
namespace {

using ::testing::HasSubstr;

TEST(rules, equal_ranks_are_healthy) {
  const Diagnosis found = judge(tell(4, 40, [](int, int) { return Step{}; }));
  EXPECT_EQ(found.verdict, Class::healthy);
  EXPECT_FALSE(found.rank);
  EXPECT_EQ(found.operations, 39u);  // without the first
}

TEST(rules, waiting_that_goes_round_is_healthy) {
  const auto turns = [](int rank, int n) { return Step{.late = n % 4 == rank ? 3000.0 : 0}; };
  EXPECT_EQ(judge(tell(4, 40, turns)).verdict, Class::healthy);
}

TEST(rules, little_waiting_is_healthy) {
  EXPECT_EQ(judge(tell(2, 40, [](int rank, int) { return Step{.late = rank == 1 ? 40.0 : 0, .move = 20}; })).verdict, Class::healthy);
  EXPECT_EQ(judge(tell(2, 40, [](int rank, int) { return Step{.late = rank == 1 ? 200.0 : 0, .move = 4000}; })).verdict, Class::healthy);
}

TEST(rules, one_hiccup_is_healthy) {
  EXPECT_EQ(judge(tell(2, 40, [](int rank, int n) { return Step{.late = rank == 1 && n == 20 ? 90000.0 : 0}; })).verdict, Class::healthy);
}

TEST(rules, a_late_rank_that_computed_is_slow) {
  const Diagnosis found = judge(tell(4, 41, [](int rank, int) { return Step{.late = rank == 3 ? 2000.0 : 0, .computed = rank == 3 ? 1900.0 : 0}; }));
  EXPECT_EQ(found.verdict, Class::slow_rank);
  EXPECT_EQ(found.rank, 3);
  EXPECT_NEAR(found.late_us_p50, 2000, 1);
  EXPECT_NEAR(found.blame_share, 1, 1e-9);
  EXPECT_EQ(found.late_operations, 40u);
  for (int q = 0; q < 3; ++q) EXPECT_NEAR(found.matrix[q][3] / 40, 2000, 1);
  EXPECT_EQ(found.matrix[3][3], 0);
  EXPECT_THAT(headline(found), HasSubstr("% of it is for rank 3, which enters 2.0 ms late in 40 of 40 operations"));
}

TEST(rules, a_late_rank_that_did_not_run_is_host_late) {
  const Diagnosis found = judge(tell(2, 40, [](int rank, int) { return Step{.late = rank == 0 ? 2000.0 : 0, .computed = rank == 0 ? 100.0 : 0}; }));
  EXPECT_EQ(found.verdict, Class::host_late);
  EXPECT_EQ(found.rank, 0);
}

TEST(rules, the_kind_with_the_waiting_gives_the_numbers) {
  const Diagnosis found = judge(tell(3, 41, [](int rank, int n) { return Step{.late = rank == 1 && n % 2 == 0 ? 5000.0 : 0}; }));
  EXPECT_EQ(found.scope, "combine");
  EXPECT_EQ(found.operations, 20u);
  EXPECT_NEAR(found.matrix[0][1] / 20, 5000, 1);
  EXPECT_THAT(headline(found), ::testing::StartsWith("combine: "));
}

TEST(rules, a_late_rank_with_more_rows_at_the_same_pace_is_imbalance) {
  const auto story = [](double late) {
    return [late](int rank, int n) {
      const bool hot = rank == 2 && n % 2 == 0;
      return Step{.late = hot ? late : 0, .computed = hot ? late : 0, .held = rank == 2 ? 4000 : 1000};
    };
  };
  EXPECT_EQ(judge(tell(4, 40, story(360))).verdict, Class::imbalance);
  EXPECT_EQ(judge(tell(4, 40, story(360))).rank, 2);
  // Ten times as long for four times the rows is not the rows.
  EXPECT_EQ(judge(tell(4, 40, story(1100))).verdict, Class::slow_rank);
}

TEST(rules, a_longer_move_of_more_bytes_is_imbalance) {
  const Diagnosis found = judge(tell(3, 40, [](int rank, int n) {
    return Step{.move = rank == 1 && n % 2 != 0 ? 2000.0 : 400, .rows = rank == 1 ? 5000 : 1000};
  }));
  EXPECT_EQ(found.verdict, Class::imbalance);
  EXPECT_EQ(found.rank, 1);
  EXPECT_LT(found.wait_share, 0.05);  // it moves; nobody is late
}

TEST(rules, a_slower_move_of_the_same_bytes_is_a_slow_link) {
  const Diagnosis found = judge(tell(3, 40, [](int rank, int) { return Step{.move = rank == 1 ? 2000.0 : 400}; }));
  EXPECT_EQ(found.verdict, Class::slow_link);
  EXPECT_EQ(found.rank, 1);
}

TEST(rules, a_move_that_is_slow_now_and_then_is_a_slow_drain) {
  const Diagnosis found = judge(tell(3, 40, [](int rank, int n) { return Step{.move = rank == 1 && n % 5 == 0 ? 9000.0 : 400}; }));
  EXPECT_EQ(found.verdict, Class::slow_drain);
  EXPECT_EQ(found.rank, 1);
  EXPECT_THAT(headline(found), HasSubstr("rank 1"));
}

std::vector<RankTrace> with_copies(int copier, bool in_late_ones) {
  auto traces = tell(2, 40, [](int rank, int n) { return Step{.late = rank == 1 && n % 3 == 0 ? 3000.0 : 0, .computed = rank == 1 && n % 3 == 0 ? 3000.0 : 0}; });
  RankTrace& rank = traces[static_cast<std::size_t>(copier)];
  for (const OperationTrace& op : rank.operations) {
    if ((op.operation % 3 == 0) == in_late_ones) rank.copies.push_back({op.ready_ns - (in_late_ones ? 2900 : 90) * us, op.ready_ns, 32 << 20, true});
  }
  return traces;
}

TEST(rules, late_where_there_are_copies_and_not_elsewhere_is_host_copies) {
  const Diagnosis found = judge(with_copies(1, true));
  EXPECT_EQ(found.verdict, Class::host_copies);
  EXPECT_EQ(found.rank, 1);
  EXPECT_THAT(headline(found), HasSubstr("GB/s"));
}

TEST(rules, copies_elsewhere_are_not_to_blame) {
  EXPECT_EQ(judge(with_copies(1, false)).verdict, Class::slow_rank);
  EXPECT_EQ(judge(with_copies(0, true)).verdict, Class::slow_rank);
}

TEST(rules, moves_that_are_slow_beside_copies_are_host_copies_of_that_rank_or_of_all) {
  for (const int ranks_that_copy : {1, 2}) {
    const auto slow = [=](int rank, int n) { return rank < ranks_that_copy && n % 2 == 0; };
    auto traces = tell(2, 60, [=](int rank, int n) { return Step{.move = slow(rank, n / 2) ? 3000.0 : 400}; });
    for (RankTrace& rank : traces) {
      for (const OperationTrace& op : rank.operations) {
        if (slow(rank.rank, static_cast<int>(op.operation / 2))) rank.copies.push_back({op.move_begin_ns, op.move_end_ns, 32 << 20, true});
      }
    }
    const Diagnosis found = judge(traces);
    EXPECT_EQ(found.verdict, Class::host_copies) << ranks_that_copy;
    EXPECT_EQ(found.rank, ranks_that_copy == 1 ? std::optional(0) : std::nullopt);
  }
}

TEST(rules, the_time_of_a_process_is_not_that_of_a_rank_that_is_a_thread) {
  auto traces = tell(2, 40, [](int rank, int) { return Step{.late = rank == 0 ? 2000.0 : 0}; });
  for (RankTrace& rank : traces) {
    rank.process = 7;
    for (OperationTrace& op : rank.operations) op.process_cpu_ns += rank.rank == 0 ? op.operation * 2000 * us : 0;
  }
  EXPECT_EQ(judge(traces).verdict, Class::host_late);
}

}  // namespace
}  // namespace sluice::doctor::testing
