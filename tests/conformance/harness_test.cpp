// The harness itself: what goes wrong in a rank is a failure here, and a hang ends.
#include "harness.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace conformance {
namespace {

RunOptions quick() {
  RunOptions options;
  options.timeout_s = 1;
  options.leave_s = 1;
  return options;
}

TEST(harness, reports_a_failed_expectation) {
  EXPECT_NONFATAL_FAILURE(run_alone([] { EXPECT_EQ(1, 2) << "seven"; }), "seven");
}

TEST(harness, reports_an_exception) {
  EXPECT_NONFATAL_FAILURE(run_alone([] { throw std::runtime_error("eight"); }), "eight");
}

TEST(harness, reports_a_crash) {
  EXPECT_NONFATAL_FAILURE(run_alone([] { raise(SIGKILL); }), "ended by signal 9");
}

TEST(harness, reports_an_early_exit) {
  EXPECT_NONFATAL_FAILURE(run_alone([] { _exit(0); }), "left before its body had ended");
}

TEST(harness, ends_a_hang) {
  EXPECT_NONFATAL_FAILURE(run_alone(
                              [] {
                                for (;;) sleep_ms(1000);
                              },
                              quick()),
                          "it hung");
}

TEST(harness, ends_a_frozen_process) {
  EXPECT_NONFATAL_FAILURE(run_alone([] { raise(SIGSTOP); }, quick()), "it hung");
}

TEST(harness, names_the_rank_that_failed) {
  for (const Place& place : places())
    EXPECT_NONFATAL_FAILURE(run_ranks(place, 3,
                                      [](Rank& self) {
                                        self.group.barrier();
                                        EXPECT_NE(self.rank, 1) << "nine";
                                      }),
                            "rank 1");
}

TEST(harness, gives_every_rank_its_group) {
  for (const Place& place : places())
    run_ranks(place, 5, [](Rank& self) {
      EXPECT_EQ(self.group.rank(), self.rank);
      EXPECT_EQ(self.group.size(), 5);
      const auto mine = static_cast<std::byte>(self.rank);
      const auto all = self.group.all_gather(std::span(&mine, 1));
      ASSERT_EQ(all.size(), 5u);
      EXPECT_EQ(all[3][0], std::byte{3});
    });
}

}  // namespace
}  // namespace conformance
