// C7: what a host holds that runs ahead, and when it is let go.
#include <atomic>
#include <mutex>
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
    int seen = 0;
    std::thread observer;
    if (self.rank == 1) {
      self.group.barrier();
    } else {
      observer = std::thread([&] {
        sleep_ms(1000);
        seen = made;
        self.group.barrier();
      });
    }
    for (int i = 0; i < calls; ++i, ++made) {
      if (self.rank == 0 && i % 2 == 1) EXPECT_THROW(comm.dispatch(bad), sluice::ArgumentError);
      else comm.dispatch(good);
    }
    if (self.rank == 0) {
      observer.join();
      EXPECT_LE(seen, most_ahead) << "calls that had returned while the peer was late";
    }
    round_trip(comm, job, self.rank, {});
  });
}

// A chain of owners, each of which lives until the next operation has ended.
PROMISE(C7, an_owner_may_wait_for_a_later_operation_of_its_channel_when_it_is_let_go, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU engine";
  constexpr int calls = 5;
  for (const std::int64_t hidden : {64, 16384}) {  // run by the caller, and by the lane's thread
    Recipe recipe;
    recipe.ranks = at.ranks;
    recipe.experts = 4 * at.ranks;
    recipe.tokens = {12, 5};
    recipe.call.counts = Counts::bounded;
    recipe.call.hidden = hidden;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      std::atomic<int> let_go{0};
      std::mutex mutex;
      std::vector<sluice::Event> ready(calls + 1);
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      const auto brought = bring(job.problem, self.rank);
      if (self.rank == 1) self.group.barrier();
      for (std::size_t i = 0; i < ready.size(); ++i) {
        sluice::DispatchArgs args = brought->args;
        if (self.rank == 0 && i < calls) {
          args.rows.owner = std::shared_ptr<const void>(nullptr, [&, i](const void*) {
            const sluice::Event later = [&] {
              const std::lock_guard lock(mutex);
              return ready[i + 1];
            }();
            later.wait();
            ++let_go;
          });
        }
        const sluice::DispatchResult sent = comm.dispatch(args);
        const std::lock_guard lock(mutex);
        ready[i] = sent.ready;
      }
      if (self.rank == 0) self.group.barrier();  // no operation ends before all calls have been made
      ready.back().wait();
      for (int i = 0; self.rank == 0 && i < 5000 && let_go < calls; ++i) sleep_ms(1);
      EXPECT_EQ(let_go.load(), self.rank == 0 ? calls : 0);
    });
  }
}

// While the lane's own thread is busy with what an owner does, nobody but the caller could run the long one.
PROMISE(C2, a_short_call_does_not_run_a_long_one_that_was_queued_before_it, {{1}}) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU engine";
  Recipe recipe;
  recipe.ranks = at.ranks;
  recipe.experts = 4;
  recipe.tokens = {64};
  recipe.call.counts = Counts::bounded;
  recipe.call.hidden = 4096;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    std::atomic<bool> entered{false}, leave{false};
    const std::thread::id caller = std::this_thread::get_id();
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchArgs longer = brought->args;
    sluice::DispatchArgs with_owner = longer, shorter = longer;
    shorter.rows.shape[0] = shorter.expert_ids.shape[0] = shorter.weights.shape[0] = 1;
    while (!entered) {  // the lane's thread is sometimes ready before this one lets go of its copy
      with_owner.rows.owner = std::shared_ptr<const void>(nullptr, [&](const void*) {
        if (std::this_thread::get_id() == caller) return;
        entered = true;
        while (!leave) sleep_ms(1);
      });
      comm.dispatch(with_owner);
      with_owner.rows.owner.reset();
      for (int i = 0; i < 100 && !entered; ++i) sleep_ms(1);
    }
    const sluice::Event queued = comm.dispatch(longer).ready;
    const sluice::Event last = comm.dispatch(shorter).ready;
    EXPECT_FALSE(queued.query());
    leave = true;
    queued.wait();
    last.wait();
  });
}

}  // namespace
}  // namespace conformance
