// C7: what a host holds that runs ahead, and when it is let go.
#include <time.h>

#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

Recipe bounded_recipe(std::int64_t hidden) {
  Recipe recipe;
  recipe.ranks = 2;
  recipe.experts = 8;
  recipe.tokens = {12, 5};
  recipe.call.counts = Counts::bounded;
  recipe.call.hidden = hidden;
  return recipe;
}

// Legal and refused calls in turn, all before the peer makes its first.
PROMISE(C7, a_host_far_ahead_of_a_late_peer_waits_for_the_oldest_operation, {{2}}) {
  constexpr int calls = 3000;
  const int most_ahead = on_cuda() ? 64 : 1024;
  const Job job(bounded_recipe(64));
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
    const Job job(bounded_recipe(hidden));
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

// Rank 0 makes a call whose rows have an owner with this deleter. The operation ends only when the caller's copy of the
// owner is gone, so that the library lets go of the last one.
void dispatch_owned(Rank& self, sluice::Communicator& comm, sluice::DispatchArgs args, std::function<void()> deleter) {
  if (self.rank == 1) self.group.barrier();
  if (self.rank == 0) {
    args.rows.owner = std::shared_ptr<const void>(nullptr, [done = std::move(deleter)](const void*) { done(); });
  }
  comm.dispatch(args);
  args = {};
  if (self.rank == 0) self.group.barrier();
}

bool comes_true(const std::atomic<bool>& word) {
  for (int i = 0; i < 10'000 && !word; ++i) sleep_ms(1);
  return word;
}

// Nobody waits for the event of any of these operations: the lane must go on by itself.
PROMISE(C7, an_owner_may_look_for_a_later_operation_that_nobody_waits_for, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU engine";
  for (const std::int64_t hidden : {64, 16384}) {  // run by the caller, and by the lane's thread
    const Job job(bounded_recipe(hidden));
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      std::promise<sluice::Event> promise;
      std::atomic<bool> let_go{false};
      const auto brought = bring(job.problem, self.rank);
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      dispatch_owned(self, comm, brought->args, [&, later = promise.get_future().share()] {
        const sluice::Event event = later.get();
        while (!event.query()) sleep_ms(1);
        let_go = true;
      });
      promise.set_value(comm.dispatch(brought->args).ready);
      EXPECT_EQ(self.rank == 0, self.rank == 0 && comes_true(let_go));
      self.group.barrier();
    });
  }
}

PROMISE(C7, an_owner_may_wait_for_a_call_that_is_more_than_1024_ahead, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU engine";
  const Job job(bounded_recipe(64));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    std::promise<void> made;
    std::atomic<bool> let_go{false};
    const auto brought = bring(job.problem, self.rank);
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    dispatch_owned(self, comm, brought->args, [&, all = made.get_future().share()] {
      all.wait();
      let_go = true;
    });
    for (int i = 0; i < 1300; ++i) comm.dispatch(brought->args);
    made.set_value();
    EXPECT_EQ(self.rank == 0, self.rank == 0 && comes_true(let_go));
    self.group.barrier();
  });
}

// A waits for a later operation, B takes its time, and the communicator goes meanwhile.
PROMISE(F4, a_communicator_may_be_destroyed_while_owners_take_their_time, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU engine";
  const Job job(bounded_recipe(16384));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    auto let_go = std::make_shared<std::atomic<int>>(0);
    const auto brought = bring(job.problem, self.rank);
    {
      std::promise<sluice::Event> promise;
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      dispatch_owned(self, comm, brought->args, [let_go, later = promise.get_future().share()] {
        later.get().wait();
        ++*let_go;
      });
      dispatch_owned(self, comm, brought->args, [let_go] {
        sleep_ms(600);
        ++*let_go;
      });
      promise.set_value(comm.dispatch(brought->args).ready);
      self.group.barrier();
    }
    EXPECT_EQ(*let_go, self.rank == 0 ? 2 : 0) << "let go when the communicator has gone";
    self.group.barrier();
  });
}

// An owner that never returns must not keep the process.
PROMISE(F4, an_owner_that_does_not_end_is_left_behind, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU engine";
  const Job job(bounded_recipe(64));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    const auto brought = bring(job.problem, self.rank);
    const auto end = std::make_shared<std::promise<void>>(), gone = std::make_shared<std::promise<void>>();
    const double began = now_ms();
    {
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      dispatch_owned(self, comm, brought->args, [gone, ended = end->get_future().share()] {
        ended.wait();
        gone->set_value();
      });
      self.group.barrier();
    }
    EXPECT_LT(now_ms() - began, 5000 * slower());
    end->set_value();
    if (self.rank == 0) gone->get_future().wait();
  });
}

double cpu_ms_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// How often of `rounds` a call took its thread more than a millisecond.
template <class Prepare, class Call>
int long_calls(int rounds, const Prepare& prepare, const Call& call) {
  int count = 0;
  for (int i = 0; i < rounds; ++i) {
    prepare();
    const double before = cpu_ms_of_this_thread();
    call();
    count += cpu_ms_of_this_thread() - before > 1;
  }
  return count;
}

// 32 MB, which take some milliseconds, are queued just before it.
PROMISE(C2, a_short_call_does_not_run_a_long_one_that_was_queued_before_it, {{1}}) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU engine";
  if (sanitized) GTEST_SKIP() << "a sanitizer changes what takes time";
  Recipe recipe;
  recipe.ranks = at.ranks;
  recipe.experts = 4;
  recipe.tokens = {4000};
  recipe.call.counts = Counts::bounded;
  recipe.call.hidden = 4096;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    sluice::DispatchArgs shorter = brought->args;
    shorter.rows.shape[0] = shorter.expert_ids.shape[0] = shorter.weights.shape[0] = 1;
    sluice::Event last;
    EXPECT_LE(long_calls(30,
                         [&] {
                           if (last.state()) last.wait();
                           comm.dispatch(brought->args);
                         },
                         [&] { last = comm.dispatch(shorter).ready; }),
              10);
    last.wait();
  });
}

// Rank 1 brings one token home, and sums what it received for that: 8000 rows.
PROMISE(C2, a_call_of_few_tokens_does_not_gather_many_rows_itself, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU engine";
  if (sanitized) GTEST_SKIP() << "a sanitizer changes what takes time";
  constexpr std::int64_t hidden = 4096;
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    const std::int64_t tokens = self.rank == 0 ? 4000 : 1;
    const CallVector<std::uint16_t> rows(index(tokens * hidden), 0x3f80);
    CallVector<std::int32_t> ids;
    for (std::int64_t t = 0; t < tokens; ++t) ids.insert(ids.end(), {2, 3});
    sluice::CommunicatorOptions options;
    options.max_tokens = 4000;
    options.experts = 4;
    options.topk = 2;
    options.hidden = hidden;
    options.layout = Layout::grouped;
    sluice::Communicator comm(self.group, options);
    sluice::DispatchArgs args;
    args.rows = sluice::ConstTensorView(rows.data(), DataType::bf16, tokens, hidden);
    args.expert_ids = sluice::ConstTensorView(ids.data(), DataType::int32, tokens, 2);
    args.layout = Layout::grouped;
    sluice::Event last;
    sluice::CombineArgs back;
    const int count = long_calls(10,
                                 [&] {
                                   back = {};
                                   const sluice::DispatchResult sent = comm.dispatch(args);
                                   sent.ready.wait();
                                   back.rows = sent.rows;
                                   back.route = sent.route;
                                   self.group.barrier();
                                 },
                                 [&] { last = comm.combine(back).inputs_free; });
    EXPECT_LE(count, 3);
    last.wait();
  });
}

}  // namespace
}  // namespace conformance
