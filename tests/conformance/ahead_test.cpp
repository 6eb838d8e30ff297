// C7: what a host holds that runs ahead, and when it is let go.
#include <atomic>
#include <thread>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

// Legal and refused calls in turn, all before the peer makes its first.
PROMISE(C7, a_host_far_ahead_of_a_late_peer_waits_for_the_oldest_of_1024_operations, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "the CUDA engine gives its operations to the device at once";
  constexpr int calls = 3000, most_ahead = 1024;
  Recipe recipe;
  recipe.ranks = at.ranks;
  recipe.experts = 4 * at.ranks;
  recipe.tokens = {12, 5};
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchArgs good = brought->args;
    sluice::DispatchArgs bad = good;
    bad.alignment = 0;
    std::atomic<int> made{0};
    self.group.barrier();
    if (self.rank == 1) sleep_ms(1500);
    int seen = 0;
    std::thread observer([&] {
      sleep_ms(1000);
      seen = made;
    });
    for (int i = 0; i < calls; ++i, ++made) {
      if (self.rank == 0 && i % 2 == 1) EXPECT_THROW(comm.dispatch(bad), sluice::ArgumentError);
      else comm.dispatch(good);
    }
    observer.join();
    if (self.rank == 0) {
      EXPECT_LE(seen, most_ahead) << "calls that had returned while the peer was late";
    }
    round_trip(comm, job, self.rank, {});
  });
}

}  // namespace
}  // namespace conformance
