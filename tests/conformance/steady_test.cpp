// C2: what bounded calls take when the same calls were made before.
#include <cstdlib>
#include <fstream>

#include "allocations.h"
#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

std::int64_t mapped_pages() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

// One bounded dispatch and the combine behind it; the host waits at the end only.
void bounded_calls(sluice::Communicator& comm, const Brought& brought) {
  const sluice::DispatchResult sent = comm.dispatch(brought.args);
  sluice::CombineArgs args;
  args.rows = sent.rows;
  args.route = sent.route;
  const sluice::CombineResult home = comm.combine(args);
  home.ready.wait();
  home.inputs_free.wait();
}

// What one pair of calls takes from operator new. Warm-up ends with the first rounds in which the
// process maps nothing: how often the heap must grow until then depends on how its threads meet.
Allocations traffic_after_warm_up(Rank& self, const Job& job) {
  constexpr int rounds = 500, most_warm_ups = 10;
  sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
  const auto brought = bring(job.problem, self.rank);
  bool grows = true;
  Allocations before, after;
  for (int i = 0; i < most_warm_ups; ++i) {
    before = allocations();
    const std::int64_t pages = mapped_pages();
    for (int round = 0; round < rounds; ++round) bounded_calls(comm, *brought);
    after = allocations();
    grows = mapped_pages() > pages;
    const std::byte mine{grows};
    bool all_steady = true;
    for (const auto& message : self.group.all_gather({&mine, 1})) all_steady &= message[0] == std::byte{0};
    if (all_steady) break;
  }
  EXPECT_FALSE(grows) << "every time the process mapped more memory";
  EXPECT_LT(after.live - before.live, 100) << "allocations of these rounds that are still alive";
  return {(after.calls - before.calls) / rounds, (after.bytes - before.bytes) / rounds, 0};
}

// The bookkeeping of a call comes from the heap and goes back there: as much for any shape, and little.
PROMISE(C2, after_warm_up_bounded_calls_take_no_memory_from_the_system, {{1, 2, 3}, Where::processes}) {
  if (sanitized) GTEST_SKIP() << "a sanitizer has its own heap";
  if (on_cuda()) GTEST_SKIP() << "the CUDA driver takes memory of its own";
  Recipe small;
  small.ranks = at.ranks;
  small.experts = 4 * at.ranks;
  small.tokens = {12, 5, 17};
  small.call.counts = Counts::bounded;
  Recipe large = small;
  large.tokens = {200, 150, 250};
  large.call.hidden = 1024;
  const Job jobs[] = {Job(small), Job(large)};
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    const Allocations few = traffic_after_warm_up(self, jobs[0]), many = traffic_after_warm_up(self, jobs[1]);
    EXPECT_LT(few.calls, 100);
    EXPECT_LT(few.bytes, 80'000);
    EXPECT_LE(std::abs(many.calls - few.calls), 5);
    EXPECT_LE(std::abs(many.bytes - few.bytes), 2'000);
  });
}

}  // namespace
}  // namespace conformance
