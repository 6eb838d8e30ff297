// How many workers a kernel of the CPU engine wakes.
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <thread>

#include "engine/cpu/kernels.h"
#include "engine/cpu/worker_team.h"

namespace {

using sluice::cpu::bytes_per_worker;

TEST(workers, few_bytes_wake_nobody_and_many_all_that_there_are) {
  sluice::cpu::WorkerTeam team(1);
  const sluice::cpu::KernelContext context{.team = team, .workers = 4};
  EXPECT_EQ(context.workers_for(0), 1);
  EXPECT_EQ(context.workers_for(2 * bytes_per_worker - 1), 1);
  EXPECT_EQ(context.workers_for(3 * bytes_per_worker), 3);
  EXPECT_EQ(context.workers_for(1000 * bytes_per_worker), 4);
}

TEST(workers, what_one_part_throws_comes_out_once_all_parts_have_ended) {
  constexpr int parts = 3;
  sluice::cpu::WorkerTeam team(parts);
  for (int throws = 0; throws < parts; ++throws) {
    std::atomic<int> ended{0};
    const auto body = [&](std::int64_t begin, std::int64_t) {
      if (begin == throws) throw std::bad_alloc();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++ended;
    };
    EXPECT_THROW(team.parallel(parts, parts, body), std::bad_alloc);
    EXPECT_EQ(ended, parts - 1);
  }
  std::atomic<int> done{0};
  team.parallel(parts, parts, [&](std::int64_t begin, std::int64_t end) { done += static_cast<int>(end - begin); });
  EXPECT_EQ(done, parts);
}

}  // namespace
