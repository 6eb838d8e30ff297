// The parts of an operation, from its stamps.
#include <gtest/gtest.h>
#include <sluice/trace.h>

namespace {

using sluice::Attribution;
using sluice::OperationTrace;
using Times = std::vector<std::int64_t>;

// Rank 0 of 4, at ease: everything 100 after what came before, peers as late as is said.
OperationTrace operation(Times lateness, Times closed_after = {0, 0, 0, 0}) {
  OperationTrace op;
  op.outcome = OperationTrace::Outcome::done;
  op.begun_ns = 1000;
  op.ready_ns = 1100;
  std::int64_t last = 0;
  for (const std::int64_t late : lateness) {
    op.arrived_ns.push_back(op.ready_ns + late);
    last = std::max(last, late);
  }
  op.move_begin_ns = op.ready_ns + last + 100;
  op.move_end_ns = op.move_begin_ns + 100;
  std::int64_t close = 0;
  for (const std::int64_t after : closed_after) {
    op.closed_ns.push_back(op.move_end_ns + after);
    close = std::max(close, after);
  }
  op.end_ns = op.move_end_ns + close + 100;
  return op;
}

TEST(Attribute, WithoutLatePeersNothingIsWaitedFor) {
  const Attribution parts = sluice::attribute(operation({0, -50, -20, -1000}));
  EXPECT_EQ(parts.wait, 0);
  EXPECT_EQ(parts.lateness, (Times{0, 0, 0, 0}));
  EXPECT_EQ(parts.blame, (Times{0, 0, 0, 0}));
  EXPECT_EQ(parts.before, 100);
  EXPECT_EQ(parts.scheduling, 100);
  EXPECT_EQ(parts.move, 100);
  EXPECT_EQ(parts.closing, 0);
  EXPECT_EQ(parts.after, 100);
  EXPECT_EQ(parts.total, 400);
}

TEST(Attribute, TheLastPeerIsBlamedForAllOfTheWait) {
  const Attribution parts = sluice::attribute(operation({0, 800, 1000, 10}));
  EXPECT_EQ(parts.wait, 1000);
  EXPECT_EQ(parts.lateness, (Times{0, 800, 1000, 10}));
  EXPECT_EQ(parts.blame, (Times{0, 0, 1000, 0}));
  EXPECT_EQ(parts.total, 1400);
}

TEST(Attribute, PeersWithin10PercentShareEquallyAndNothingIsLost) {
  const Attribution parts = sluice::attribute(operation({0, 900, 1000, 899}));
  EXPECT_EQ(parts.blame, (Times{0, 500, 500, 0}));
  EXPECT_EQ(sluice::attribute(operation({0, 1000, 1000, 1000})).blame, (Times{0, 333, 333, 334}));
}

TEST(Attribute, WaitingForTheOwnDataIsNeitherWaitingForPeersNorScheduling) {
  OperationTrace op = operation({0, 200, 0, 0});
  op.data_ns = op.ready_ns + 250;
  const Attribution parts = sluice::attribute(op);
  EXPECT_EQ(parts.wait, 200);
  EXPECT_EQ(parts.data, 50);
  EXPECT_EQ(parts.scheduling, 50);
  op.data_ns = op.ready_ns - 10;  // there before anybody asked
  EXPECT_EQ(sluice::attribute(op).data, 0);
}

TEST(Attribute, PeersThatStillMoveAreNotLate) {
  const Attribution parts = sluice::attribute(operation({0, 0, 0, 0}, {0, 700, -300, 20}));
  EXPECT_EQ(parts.wait, 0);
  EXPECT_EQ(parts.closing, 700);
  EXPECT_EQ(parts.peer_move, (Times{0, 700, 0, 20}));
  EXPECT_EQ(parts.total, 1100);
}

TEST(Attribute, OnlyWhatIsDoneHasParts) {
  for (const auto outcome : {OperationTrace::Outcome::running, OperationTrace::Outcome::stopped, OperationTrace::Outcome::failed}) {
    OperationTrace op = operation({0, 800, 0, 0});
    op.outcome = outcome;
    const Attribution parts = sluice::attribute(op);
    EXPECT_EQ(parts.total, 0);
    EXPECT_EQ(parts.wait, 0);
    EXPECT_EQ(parts.blame, (Times{0, 0, 0, 0}));
  }
}

}  // namespace
