// C1 and C3: routes that live on, two channels at once, and calls that wait for events.
#include <string>
#include <thread>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

Recipe base(const At& at, std::uint64_t seed) {
  Recipe recipe = small_recipe(at.ranks, seed);
  recipe.max_tokens = 24;
  recipe.missing = 0.1;
  return recipe;
}

// Room for several live outputs.
sluice::CommunicatorOptions roomy(const Problem& problem, const std::string& engine) {
  sluice::CommunicatorOptions options = options_for(problem, engine);
  options.arena_bytes = 16 << 20;
  return options;
}

// Case 7: again with only the data and the route, after the inputs were overwritten.
PROMISE(C1, a_route_is_reused_after_its_inputs_were_overwritten, {{1, 2, 3, 5}}) {
  for (Layout layout : layouts)
    for (Counts counts : {Counts::exact, Counts::bounded}) {
      Recipe recipe = base(at, 71);
      recipe.call.layout = layout;
      recipe.call.counts = counts;
      recipe.call.scales = 2;
      Job first(recipe);
      Job second = first;
      refill(second.problem, 999, Fill::noise);
      run_ranks(at.place, at.ranks, [&](Rank& self) {
        sluice::Communicator comm(self.group, roomy(first.problem, self.engine));
        auto brought = bring(first.problem, self.rank);
        const sluice::DispatchResult sent = comm.dispatch(brought->args);
        check_dispatch(first, self.rank, sent, *brought);
        const sluice::Route route = sent.route;
        EXPECT_TRUE(route.valid());
        EXPECT_EQ(route.tokens(), first.problem.inputs[index(self.rank)].tokens);
        EXPECT_EQ(route.topk(), first.problem.call.topk);
        std::fill(brought->ids32.begin(), brought->ids32.end(), 7);
        std::fill(brought->weights.begin(), brought->weights.end(), -1.0f);
        std::fill(brought->rows.begin(), brought->rows.end(), std::byte{0xee});
        for (int turn = 0; turn < 4; ++turn) {
          const auto next = bring(second.problem, self.rank);
          next->args.expert_ids = {};
          next->args.route = route;
          const sluice::DispatchResult again = comm.dispatch(next->args);
          check_dispatch(second, self.rank, again, *next);
          CombineCall call = combine_call(first.problem);
          call.seed = static_cast<std::uint64_t>(turn);
          const auto returned = give_back(comm, second, self.rank, again, call);
          returned->args.route = turn % 2 ? route : again.route;
          check_combine(second, self.rank, call, comm.combine(returned->args));
        }
      });
    }
}

PROMISE(C1, a_route_made_from_a_mask_is_reused, {{2, 3}}) {
  Recipe recipe = base(at, 72);
  recipe.call.mask = true;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, roomy(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    check_dispatch(job, self.rank, sent, *brought);
    EXPECT_EQ(sent.route.topk(), 0);
    brought->args.rank_mask = {};
    brought->args.route = sent.route;
    std::fill(brought->mask.begin(), brought->mask.end(), std::uint8_t{1});
    const sluice::DispatchResult again = comm.dispatch(brought->args);
    check_dispatch(job, self.rank, again, *brought);
    const CombineCall call = combine_call(job.problem);
    const auto returned = give_back(comm, job, self.rank, again, call);
    check_combine(job, self.rank, call, comm.combine(returned->args));
  });
}

// Case 8. `order` says which of two live routes is combined first.
void two_alive(const At& at, bool last_first) {
  const int rounds = long_runs() ? 500 : 60;
  Recipe a = base(at, 81), b = base(at, 82);
  b.tokens = {3, 20, 0};
  b.call.layout = Layout::grouped;
  const Job jobs[2] = {Job(a), Job(b)};
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, roomy(jobs[0].problem, self.engine));
    for (int round = 0; round < rounds && !failed_here(); ++round) {
      std::unique_ptr<Brought> brought[2];
      sluice::DispatchResult sent[2];
      for (int i = 0; i < 2; ++i) {
        brought[i] = bring(jobs[i].problem, self.rank);
        sent[i] = comm.dispatch(brought[i]->args);
      }
      for (int turn = 0; turn < 2; ++turn) {
        const int i = last_first ? 1 - turn : turn;
        check_dispatch(jobs[i], self.rank, sent[i], *brought[i]);
        const CombineCall call = combine_call(jobs[i].problem);
        const auto returned = give_back(comm, jobs[i], self.rank, sent[i], call);
        check_combine(jobs[i], self.rank, call, comm.combine(returned->args));
      }
    }
  });
}

PROMISE(C1, two_routes_alive_last_in_first_out, {{2, 3}}) { two_alive(at, true); }

PROMISE(C1, two_routes_alive_first_in_first_out, {{2, 3}}) { two_alive(at, false); }

PROMISE(C1, ranks_that_use_different_routes_are_told, {{2, 3}}) {
  const Job job(base(at, 83));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, roomy(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchResult sent[2] = {comm.dispatch(brought->args), comm.dispatch(brought->args)};
    const CombineCall call = combine_call(job.problem);
    const auto returned = give_back(comm, job, self.rank, sent[self.rank == 0], call);
    expect_error<sluice::PeerError>([&] { comm.combine(returned->args).ready.wait(); });
    returned->args.route = sent[0].route;
    check_combine(job, self.rank, call, comm.combine(returned->args));
  });
}

// Case 9: dispatch of one batch while another combines, on two channels, from two host threads.
PROMISE(C3, two_channels_run_at_the_same_time, {{2, 3, 4}}) {
  const int rounds = long_runs() ? 1000 : 60;
  Recipe a = base(at, 91), b = base(at, 92);
  a.call.counts = b.call.counts = Counts::bounded;
  b.call.channel = 1;
  b.call.layout = Layout::grouped;
  const Job jobs[2] = {Job(a), Job(b)};
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, roomy(jobs[0].problem, self.engine));
    Random random(static_cast<std::uint64_t>(self.rank));
    const CombineCall call = combine_call(jobs[0].problem);
    std::unique_ptr<Brought> brought[2];
    std::unique_ptr<Returned> returned[2];
    sluice::DispatchResult sent[2];
    sluice::CombineResult home[2];
    for (int i = 0; i < 2; ++i) brought[i] = bring(jobs[i].problem, self.rank);
    sent[0] = comm.dispatch(brought[0]->args);
    for (int round = 0; round < rounds && !failed_here(); ++round) {
      const int now = round % 2, next = 1 - now;
      check_dispatch(jobs[now], self.rank, sent[now], *brought[now]);
      returned[now] = give_back(comm, jobs[now], self.rank, sent[now], call);
      sleep_ms(random.unit() * 0.2);
      home[now] = comm.combine(returned[now]->args);
      sleep_ms(random.unit() * 0.2);
      sent[next] = comm.dispatch(brought[next]->args);
      check_combine(jobs[now], self.rank, call, home[now]);
    }
    sent[rounds % 2].ready.wait();
  });
}

// A late peer on one channel does not hold up the other.
PROMISE(C3, a_channel_that_waits_does_not_hold_up_the_other, {{2, 3}}) {
  Recipe a = base(at, 93), b = base(at, 94);
  a.call.counts = b.call.counts = Counts::bounded;
  b.call.channel = 1;
  const Job jobs[2] = {Job(a), Job(b)};
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, roomy(jobs[0].problem, self.engine));
    std::unique_ptr<Brought> brought[2] = {bring(jobs[0].problem, self.rank),
                                           bring(jobs[1].problem, self.rank)};
    sluice::DispatchResult waiting;
    if (self.rank != 0) waiting = comm.dispatch(brought[0]->args);
    const sluice::DispatchResult other = comm.dispatch(brought[1]->args);
    check_dispatch(jobs[1], self.rank, other, *brought[1]);
    if (self.rank != 0) {
      EXPECT_FALSE(waiting.ready.query());
    }
    self.group.barrier();
    if (self.rank == 0) waiting = comm.dispatch(brought[0]->args);
    check_dispatch(jobs[0], self.rank, waiting, *brought[0]);
  });
}

PROMISE(C3, calls_on_one_channel_run_in_the_order_of_the_host, {{2, 3}}) {
  Recipe recipe = base(at, 95);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, roomy(job.problem, self.engine));
    const auto brought =
        bring(job.problem, self.rank,
              {.strided = false, .own_output = false, .load = true, .waited = false, .num_sms = 0});
    const Arrivals& arrivals = job.arrivals[index(self.rank)];
    for (std::int32_t& n : brought->load) n = 0;
    sluice::Event last;
    std::vector<sluice::Event> events;
    for (int i = 0; i < 10; ++i) events.push_back(comm.dispatch(brought->args).ready);
    events.back().wait();
    for (const sluice::Event& event : events) EXPECT_TRUE(event.query());
    for (std::size_t e = 0; e < brought->load.size(); ++e)
      EXPECT_EQ(brought->load[e], 10 * arrivals.per_expert[e]);
  });
}

// The second host thread inside calls on one channel gets ArgumentError; the first is not disturbed.
PROMISE(C3, a_second_host_thread_on_a_channel_gets_an_error, {{2}}) {
  const Job job(base(at, 96));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, roomy(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    if (self.rank == 1) {  // late, so that rank 0 stays inside its exact call
      sleep_ms(300);
      check_dispatch(job, self.rank, comm.dispatch(brought->args), *brought);
      return;
    }
    std::string second;
    std::thread other([&] {
      sleep_ms(100);
      const auto mine = bring(job.problem, self.rank);
      try {
        comm.dispatch(mine->args);
        second = "no error";
      } catch (const sluice::Error& error) {
        second = error.kind();
      }
    });
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    other.join();
    EXPECT_EQ(second, "ArgumentError");
    check_dispatch(job, self.rank, sent, *brought);
  });
}

// Each host thread owns a channel; nothing else keeps them apart.
PROMISE(C3, two_host_threads_with_a_channel_each, {{1, 2, 3}}) {
  // Two lanes of one rank write the same block of a peer, one after the other; the order passes through the
  // peer's process, which the sanitizer of this one cannot see.
  if (thread_sanitizer && at.place.launch == Launch::processes)
    GTEST_SKIP() << "ThreadSanitizer does not follow other processes";
  const int rounds = long_runs() ? 2000 : 60;
  Recipe recipe = small_recipe(at.ranks, 1);
  recipe.call.counts = Counts::bounded;
  std::vector<Job> jobs;
  for (int channel = 0; channel < 2; ++channel) {
    recipe.call.channel = channel;
    recipe.call.layout = channel == 0 ? Layout::packed : Layout::padded;
    recipe.seed += 1;
    jobs.emplace_back(recipe);
  }
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(jobs[1].problem, self.engine);
    options.arena_bytes = 16 << 20;
    sluice::Communicator comm(self.group, options);
    std::string failures;
    const auto work = [&](const Job& job) {
      for (int round = 0; round < rounds && !failed_here(); ++round) round_trip(comm, job, self.rank, {});
    };
    std::thread other([&] { failures = failures_of([&] { work(jobs[1]); }); });
    work(jobs[0]);
    other.join();
    EXPECT_EQ(failures, "");
  });
}

// The rows of a call may be the result of an earlier one that has not ended: `after` names its event.
PROMISE(C3, after_names_the_event_that_makes_the_data, {{2, 3}}) {
  Recipe recipe = small_recipe(at.ranks, 5);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.arena_bytes = 16 << 20;
    sluice::Communicator comm(self.group, options);
    for (int round = 0; round < 20 && !failed_here(); ++round) {
      const Half half = first_half(comm, job, self.rank);
      if (self.rank == round % self.size) sleep_ms(3);
      const sluice::CombineResult home = comm.combine(half.returned->args);
      // On the other channel: what came home goes out again.
      const auto next = bring(job.problem, self.rank);
      next->args.rows = home.rows;
      next->args.after = home.ready;
      next->args.channel = 1;
      const sluice::DispatchResult again = comm.dispatch(next->args);
      again.ready.wait();
      std::vector<Combined> homes;
      for (int r = 0; r < self.size; ++r)
        homes.push_back(expected_combine(job.problem, job.arrivals, half.call, r));
      Job chained = job;
      for (int r = 0; r < self.size; ++r) chained.problem.inputs[index(r)].sent_rows = homes[index(r)].rows;
      check_dispatch(chained, self.rank, again, *next);
    }
  });
}

}  // namespace
}  // namespace conformance
