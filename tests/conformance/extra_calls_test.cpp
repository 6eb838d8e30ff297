// More of C3, C5, C6 and F8: host threads, events between calls, an arena that runs out, options that are
// wrong.
#include <thread>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

Recipe base(const At& at, std::uint64_t seed) {
  Recipe recipe;
  recipe.seed = seed;
  recipe.ranks = at.ranks;
  recipe.experts = 4 * at.ranks;
  recipe.tokens = {12, 5, 17};
  return recipe;
}

// Each host thread owns a channel; nothing else keeps them apart.
PROMISE(C3, two_host_threads_with_a_channel_each, {{1, 2, 3}}) {
  // Two lanes of one rank write the same block of a peer, one after the other; the order passes through the
  // peer's process, which the sanitizer of this one cannot see.
  if (thread_sanitizer && at.place.launch == Launch::processes)
    GTEST_SKIP() << "ThreadSanitizer does not follow other processes";
  const int rounds = long_runs() ? 2000 : 60;
  Recipe recipe = base(at, 1);
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
  Recipe recipe = base(at, 5);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.arena_bytes = 16 << 20;
    sluice::Communicator comm(self.group, options);
    for (int round = 0; round < 20 && !failed_here(); ++round) {
      const auto brought = bring(job.problem, self.rank);
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      check_dispatch(job, self.rank, sent, *brought);
      const CombineCall call = combine_call(job.problem);
      const auto returned = give_back(comm, job, self.rank, sent, call);
      if (self.rank == round % self.size) sleep_ms(3);
      const sluice::CombineResult home = comm.combine(returned->args);
      // On the other channel: what came home goes out again.
      const auto next = bring(job.problem, self.rank);
      next->args.rows = home.rows;
      next->args.after = home.ready;
      next->args.channel = 1;
      const sluice::DispatchResult again = comm.dispatch(next->args);
      again.ready.wait();
      std::vector<Combined> homes;
      for (int r = 0; r < self.size; ++r)
        homes.push_back(expected_combine(job.problem, job.arrivals, call, r));
      Job chained = job;
      for (int r = 0; r < self.size; ++r) chained.problem.inputs[index(r)].sent_rows = homes[index(r)].rows;
      check_dispatch(chained, self.rank, again, *next);
    }
  });
}

// Results that are held fill the arena of one rank: it says so, its peers are told, and when they are let go
// all is well.
PROMISE(C5, an_arena_that_is_full_is_an_error_and_empties_again, {{1, 2, 3}}) {
  Recipe recipe = base(at, 6);
  recipe.call.counts = Counts::bounded;
  recipe.call.hidden = 1024;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.arena_bytes = 2 << 20;
    sluice::Communicator comm(self.group, options);
    const auto brought = bring(job.problem, self.rank);
    std::vector<sluice::DispatchResult> held;
    std::string kind, message;
    for (int i = 0; i < 500 && kind.empty(); ++i) {
      try {
        sluice::DispatchResult sent = comm.dispatch(brought->args);
        sent.ready.wait();
        if (self.rank == 0) held.push_back(std::move(sent));
      } catch (const sluice::Error& error) {
        kind = error.kind();
        message = error.what();
      }
    }
    if (self.rank == 0)
      EXPECT_EQ(kind, "CapacityError") << message;
    else
      EXPECT_TRUE(kind == "CapacityError" ||
                  (kind == "PeerError" && message.find("rank 0") != std::string::npos))
          << kind << ": " << message;
    for (const sluice::DispatchResult& sent : held) check_dispatch(job, self.rank, sent, *brought);
    held.clear();
    for (int i = 0; i < 5; ++i) round_trip(comm, job, self.rank, {});
    if (self.rank == 0) expect_error<sluice::CapacityError>([&] { comm.allocate(1 << 20, 1 << 10); });
    round_trip(comm, job, self.rank, {});
  });
}

// With exact counts the rows take what the arena has; where that is too little, the rank says who has the rest.
PROMISE(C5, rows_that_do_not_fit_in_the_arena_name_who_holds_it, {{1, 2}}) {
  Recipe recipe = base(at, 7);
  recipe.call.counts = Counts::exact;
  recipe.call.hidden = 1024;
  recipe.tokens = {90};
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.arena_bytes = 2 << 20;
    sluice::Communicator comm(self.group, options);
    const auto brought = bring(job.problem, self.rank);
    // Room for tables and outputs, and for some of the rows, is left.
    std::vector<sluice::TensorView> held;
    try {
      while (self.rank == 0) held.push_back(comm.allocate(16, 2048));
    } catch (const sluice::CapacityError&) {
      held.resize(held.size() - 3);
    }
    std::string message;
    try {
      comm.dispatch(brought->args).ready.wait();
    } catch (const sluice::Error& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("rank 0 needs"), std::string::npos) << message;
    for (const char* part : {"(in the arena of this rank dispatch results hold", "combine inputs hold"})
      EXPECT_EQ(message.find(part) != std::string::npos, self.rank == 0) << message;
    held.clear();
    round_trip(comm, job, self.rank, {});
  });
}

PROMISE(C6, wrong_options_are_refused, {{1, 2}}) {
  using Spoil = void (*)(sluice::CommunicatorOptions&);
  const Spoil spoils[] = {
      [](sluice::CommunicatorOptions& o) { o.engine = "abacus"; },
      [](sluice::CommunicatorOptions& o) { o.max_tokens = -1; },
      [](sluice::CommunicatorOptions& o) { o.max_tokens = sluice::limits::max_tokens + 1; },
      [](sluice::CommunicatorOptions& o) { o.experts = 0; },
      [](sluice::CommunicatorOptions& o) { o.experts = 2 * sluice::limits::experts; },
      [](sluice::CommunicatorOptions& o) { o.hidden = 0; },
      [](sluice::CommunicatorOptions& o) { o.topk = -1; },
      [](sluice::CommunicatorOptions& o) { o.topk = 65; },
      [](sluice::CommunicatorOptions& o) { o.channels = 0; },
      [](sluice::CommunicatorOptions& o) { o.channels = 65; },
      [](sluice::CommunicatorOptions& o) { o.deadline_ms = -1; },
      [](sluice::CommunicatorOptions& o) { o.arena_bytes = -1; },
      [](sluice::CommunicatorOptions& o) { o.alignment = 0; },
      [](sluice::CommunicatorOptions& o) { o.capacity = -1; },
      [](sluice::CommunicatorOptions& o) {
        o.first_expert = {0, 5};
        o.experts = 4;
      },
      [](sluice::CommunicatorOptions& o) {
        o.first_expert = {3, 1, 8, 8};
      },
      [](sluice::CommunicatorOptions& o) { o.workers = -1; },
      [](sluice::CommunicatorOptions& o) { o.hidden = 1 << 20; }};
  const Job job(base(at, 7));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    int turn = 0;
    for (const Spoil spoil : spoils) {
      SCOPED_TRACE("spoil " + std::to_string(turn++));
      sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
      spoil(options);
      try {
        sluice::Communicator comm(self.group, options);
        ADD_FAILURE() << "no error";
      } catch (const sluice::ArgumentError&) {
      } catch (const sluice::SystemError&) {  // an engine that is not there
      }
    }
    run_job(self, job, {});
  });
}

// One rank alone gives wrong options: the others are told at once and can try again.
PROMISE(C6, wrong_options_on_one_rank_end_the_creation_everywhere, {{2, 3}}) {
  const Job job(base(at, 8));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    if (self.rank == 1) options.topk = 1000;
    const double start = now_ms();
    try {
      sluice::Communicator comm(self.group, options);
      ADD_FAILURE() << "no error";
    } catch (const sluice::Error& error) {
      EXPECT_NE(std::string(error.what()).find("1000"), std::string::npos) << error.what();
    }
    EXPECT_LT(now_ms() - start, 5000);
    run_job(self, job, {});
  });
}

PROMISE(C6, a_channel_that_does_not_exist_is_refused, {{2}}) {
  const Job job(base(at, 9));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    for (int channel : {-1, 2, 1000}) {
      const auto brought = bring(job.problem, self.rank);
      brought->args.channel = channel;
      expect_error<sluice::ArgumentError>([&] { comm.dispatch(brought->args); });
    }
    round_trip(comm, job, self.rank, {});
  });
}

// bounded, checked: a bad id shows at `ready`, and one that nobody waited for at the next host call.
PROMISE(S4, a_bad_id_of_a_bounded_call_shows_at_ready_and_at_the_next_call, {{2}}) {
  Recipe recipe = base(at, 10);
  recipe.call.counts = Counts::bounded;
  recipe.call.checks = Checks::on;
  const Job legal(recipe);
  Job job(recipe);
  job.problem.inputs[0].ids[6] = 999;
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::Event ready = comm.dispatch(brought->args).ready;
    self.group.barrier();
    sleep_ms(100);
    const auto next = bring(legal.problem, self.rank);
    const auto call = [&] { comm.dispatch(next->args).ready.wait(); };
    if (self.rank == 0) {
      expect_error<sluice::ArgumentError>(call, {"999"});
      expect_error<sluice::ArgumentError>([&] { ready.wait(); }, {"999", "row 1", "column 2"});
    } else {
      expect_error<sluice::PeerError>([&] { ready.wait(); }, {"rank 0 refused"});
      try {
        call();
      } catch (const sluice::PeerError&) {
      }
    }
    round_trip(comm, legal, self.rank, {});
  });
}

// As F8 for combine: whoever reports success has the whole sum.
PROMISE(F8, a_combine_that_reports_success_is_complete, {{2, 3, 4}}) {
  const int rounds = long_runs() ? 200 : 12;
  Recipe recipe = base(at, 11);
  recipe.call.layout = Layout::grouped;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    for (int round = 0; round < rounds && !failed_here(); ++round) {
      Random random(static_cast<std::uint64_t>(round) + 50);  // the same on all ranks
      const int late_rank = static_cast<int>(random.below(self.size));
      const int lateness = static_cast<int>(random.between(20, 90));
      std::vector<int> deadlines;
      for (int r = 0; r < self.size; ++r) deadlines.push_back(static_cast<int>(random.between(20, 90)));
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      const auto brought = bring(job.problem, self.rank);
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      check_dispatch(job, self.rank, sent, *brought);
      const CombineCall call = combine_call(job.problem);
      const auto returned = give_back(comm, job, self.rank, sent, call);
      comm.set_deadline_ms(deadlines[index(self.rank)]);
      self.group.barrier();
      if (self.rank == late_rank) sleep_ms(lateness);
      try {
        check_combine(job, self.rank, call, comm.combine(returned->args));
      } catch (const sluice::PeerError&) {
      }
      self.group.barrier();
    }
  });
}

}  // namespace
}  // namespace conformance
