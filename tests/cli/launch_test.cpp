// Ranks as threads and processes: results, failures, nothing left behind.
#include "cli/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sluice/errors.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "cli/barrier.h"
#include "cli/json.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

Failure failure_of(Launch launch, int ranks, const RankFunction& function) {
  try {
    Launcher(launch, ranks, 1).run(function);
  } catch (const LaunchError& error) {
    return error.failure();
  }
  return {"none", "", -1};
}

class EachLaunch : public ::testing::TestWithParam<Launch> {};
INSTANTIATE_TEST_SUITE_P(launch, EachLaunch, ::testing::Values(Launch::threads, Launch::processes),
                         [](const auto& launch) { return std::string(name_of(launch.param)); });

TEST_P(EachLaunch, results_come_in_rank_order_whatever_their_size) {
  for (const int ranks : {1, 2, 5}) {
    const auto results = Launcher(GetParam(), ranks, 1).run([](RankContext& context) {
      EXPECT_EQ(context.group.rank(), context.rank);
      return std::string(static_cast<std::size_t>(context.rank) * 300'000, static_cast<char>(context.rank));
    });
    ASSERT_EQ(results.size(), static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r)
      EXPECT_EQ(results[r], std::string(static_cast<std::size_t>(r) * 300'000, static_cast<char>(r)));
  }
}

TEST_P(EachLaunch, shared_memory_is_shared_and_zeroed) {
  const auto results = Launcher(GetParam(), 4, 1)
                           .run(
                               [](RankContext& context) {
                                 auto& barrier = *reinterpret_cast<SharedBarrier*>(context.shared);
                                 auto* counts = reinterpret_cast<std::atomic<int>*>(context.shared + 1024);
                                 for (int round = 0; round < 200; ++round) {
                                   counts[round % 2].fetch_add(1);
                                   const Met met = barrier.wait(context.size, round % 3 == 0   ? WaitFor::spin
                                                                              : round % 3 == 1 ? WaitFor::yield
                                                                                               : WaitFor::sleep);
                                   if (met != Met::all) return std::string("alone");
                                   if (counts[round % 2].load() != 4 * (round / 2 + 1))
                                     return std::string("early");
                                   if (barrier.wait(context.size, WaitFor::yield) != Met::all)
                                     return std::string("alone");
                                 }
                                 return std::string("fine");
                               },
                               4096);
  for (const auto& result : results) EXPECT_EQ(result, "fine");
}

TEST_P(EachLaunch, the_failure_nearest_to_the_cause_is_reported) {
  const Failure failure = failure_of(GetParam(), 3, [](RankContext& context) -> std::string {
    if (context.rank == 1) throw ArgumentError("the cause", 1);
    throw PeerError("an echo", context.rank);
  });
  EXPECT_EQ(failure.kind, "ArgumentError");
  EXPECT_EQ(failure.message, "the cause");
  EXPECT_EQ(failure.rank, 1);
}

TEST(launch, a_killed_process_is_reported_by_rank_and_signal) {
  const Failure failure = failure_of(Launch::processes, 3, [](RankContext& context) -> std::string {
    if (context.rank == 2) raise(SIGKILL);
    return "";
  });
  EXPECT_EQ(failure.kind, "Killed");
  EXPECT_EQ(failure.rank, 2);
  EXPECT_THAT(failure.message, HasSubstr("rank 2 was killed by signal 9"));
}

TEST(launch, hanging_ranks_end_soon_after_a_failure) {
  const auto begin = std::chrono::steady_clock::now();
  const Failure failure = failure_of(Launch::processes, 2, [](RankContext& context) -> std::string {
    if (context.rank == 1) throw ArgumentError("no", 1);
    for (;;) pause();
  });
  EXPECT_EQ(failure.kind, "ArgumentError");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
}

TEST(launch, a_process_may_leave_with_its_result) {
  const auto results = Launcher(Launch::processes, 2, 1).run([](RankContext& context) {
    if (context.rank == 1) context.leave("left");
    return std::string("stayed");
  });
  EXPECT_EQ(results, (std::vector<std::string>{"stayed", "left"}));
}

TEST(barrier, one_who_abandons_frees_the_others) {
  SharedBarrier barrier{};
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    barrier.abandon();
  });
  EXPECT_EQ(barrier.wait(2, WaitFor::yield), Met::abandoned);
}

TEST(barrier, one_who_does_not_come_is_late_in_every_form) {
  for (const WaitFor form : {WaitFor::spin, WaitFor::yield, WaitFor::sleep}) {
    SharedBarrier barrier{};
    EXPECT_EQ(barrier.wait(2, form, std::chrono::milliseconds(30)), Met::late);
  }
}

TEST(json, strings_that_are_not_utf8_do_not_throw) {
  const Json record = error_record({"SystemError", "bad \xff byte", 3});
  EXPECT_NE(record.dump(-1, ' ', false, Json::error_handler_t::replace).find("bad"), std::string::npos);
  EXPECT_EQ(record["rank"], 3);
}

}  // namespace
}  // namespace sluice::cli
