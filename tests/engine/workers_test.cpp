// How many workers a kernel of the CPU engine wakes.
#include <gtest/gtest.h>

#include "engine/cpu/kernels.h"

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

}  // namespace
