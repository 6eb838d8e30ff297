// F1, F7 and F8: late peers, who waited for whom, and that nobody calls a loss a success.
#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

sluice::CommunicatorOptions with_deadline(const Problem& problem, const std::string& engine,
                                          int deadline_ms) {
  sluice::CommunicatorOptions options = options_for(problem, engine);
  options.deadline_ms = deadline_ms;
  return options;
}

// Case 12: late by less than the deadline.
PROMISE(F1, a_peer_late_by_less_than_the_deadline_is_fine, {{2, 3}}) {
  for (Counts counts : {Counts::exact, Counts::bounded}) {
    Recipe recipe = small_recipe(at.ranks, 1);
    recipe.call.counts = counts;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, with_deadline(job.problem, self.engine, 10'000));
      if (self.rank == 1) sleep_ms(700);
      const Half half = first_half(comm, job, self.rank);
      if (self.rank == 0) sleep_ms(700);
      check_combine(job, self.rank, half.call, comm.combine(half.returned->args));
    });
  }
}

PROMISE(F1, a_rank_that_comes_late_to_the_creation_is_fine, {{2, 3}}) {
  const Job job(small_recipe(at.ranks, 56));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    if (self.rank == 1) sleep_ms(500);
    run_job(self, job, {});
  });
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Every rank gets PeerError in time; the late one too, when it comes. The channel has failed for good; a
// new communicator works.
void late(const At& at, bool in_combine, Counts counts) {
  Recipe recipe = small_recipe(at.ranks, 2);
  recipe.call.counts = counts;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    {
      sluice::Communicator comm(self.group, with_deadline(job.problem, self.engine, 500));
      Half half;
      if (in_combine)
        half = first_half(comm, job, self.rank);
      else
        half.brought = bring(job.problem, self.rank);
      self.group.barrier();
      if (self.rank == 1) sleep_ms(1500);
      const double start = now_ms();
      const std::string message = expect_error<sluice::PeerError>(
          [&] {
            if (in_combine)
              comm.combine(half.returned->args).ready.wait();
            else
              comm.dispatch(half.brought->args).ready.wait();
          },
          {in_combine ? "combine" : "dispatch", "rank 1"});
      EXPECT_LT(now_ms() - start, 1500.0 * slower());
      if (self.rank != 1) {
        EXPECT_GT(now_ms() - start, 450) << message;
        EXPECT_TRUE(says(message, "OPEN") || says(message, "open")) << message;
        EXPECT_TRUE(says(message, "rank " + std::to_string(self.rank))) << message;
      }
      const double again = now_ms();
      expect_error<sluice::PeerError>([&] { comm.dispatch(half.brought->args).ready.wait(); });
      EXPECT_LT(now_ms() - again, 400.0 * slower()) << "a failed channel must refuse at once";
      self.group.barrier();
    }
    run_job(self, job);
  });
}

PROMISE(F1, a_peer_later_than_the_deadline_ends_the_dispatch_everywhere, {{2, 3, 4}}) {
  late(at, false, Counts::exact);
}

PROMISE(F1, a_peer_later_than_the_deadline_ends_the_bounded_dispatch_everywhere, {{2, 3}}) {
  late(at, false, Counts::bounded);
}

PROMISE(F1, a_peer_later_than_the_deadline_ends_the_combine_everywhere, {{2, 3}}) {
  late(at, true, Counts::exact);
}

PROMISE(F1, after_a_failure_counts_are_0_and_ids_minus_1, {{2, 3}}) {
  for (Layout layout : layouts) {
    Recipe recipe = small_recipe(at.ranks, 3);
    recipe.call.layout = layout;
    recipe.call.counts = Counts::bounded;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, with_deadline(job.problem, self.engine, 300));
      if (self.rank == 0) {
        sleep_ms(900);
        return;
      }
      const auto brought = bring(job.problem, self.rank);
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      expect_error<sluice::PeerError>([&] { sent.ready.wait(); }, {"rank 0"});
      expect_error<sluice::PeerError>([&] { sent.ready.wait(); }, {"rank 0"});
      expect_error<sluice::PeerError>([&] { (void)sent.ready.query(); }, {"rank 0"});
      EXPECT_EQ(elements_of<std::int64_t>(sent.num_rows), std::vector<std::int64_t>{0});
      for (const std::int32_t count : elements_of<std::int32_t>(sent.counts)) EXPECT_EQ(count, 0);
      for (const std::int32_t id : elements_of<std::int32_t>(sent.local_ids)) ASSERT_EQ(id, -1);
    });
  }
}

PROMISE(F1, the_deadline_can_be_changed_while_it_runs, {{2}}) {
  Recipe recipe = small_recipe(at.ranks, 4);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, with_deadline(job.problem, self.engine, 200));
    comm.set_deadline_ms(0);
    self.group.barrier();
    if (self.rank == 1) sleep_ms(600);
    round_trip(comm, job, self.rank, {});
    comm.set_deadline_ms(200);
    self.group.barrier();
    if (self.rank == 1) {
      sleep_ms(800);
      return;
    }
    const auto brought = bring(job.problem, self.rank);
    const double start = now_ms();
    expect_error<sluice::PeerError>([&] { comm.dispatch(brought->args).ready.wait(); });
    EXPECT_LT(now_ms() - start, 700.0 * slower());
  });
}

// A rank that leaves without its part is noticed long before the deadline.
PROMISE(F1, a_rank_that_left_is_noticed_at_once, {{2, 3}}) {
  const Job job(small_recipe(at.ranks, 5));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, with_deadline(job.problem, self.engine, 20'000));
    round_trip(comm, job, self.rank, {});
    if (self.rank == 0) return;
    const auto brought = bring(job.problem, self.rank);
    const double start = now_ms();
    expect_error<sluice::PeerError>([&] { comm.dispatch(brought->args).ready.wait(); }, {"rank 0"});
    EXPECT_LT(now_ms() - start, 3000.0 * slower());
  });
}

PROMISE(F1, an_operation_that_waits_for_an_event_hears_that_a_peer_gave_up, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "a stream that waits for another stream's event cannot be released";
  Recipe recipe = small_recipe(at.ranks, 46);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.deadline_ms = 60'000;
    sluice::Communicator stuck(self.group, options);
    options.deadline_ms = 700;
    sluice::Communicator comm(self.group, options);
    const auto brought = bring(job.problem, self.rank), other = bring(job.problem, self.rank);
    self.group.barrier();
    sluice::DispatchArgs args = brought->args;
    if (self.rank == 0) args.after = stuck.dispatch(other->args).ready;  // rank 1 never calls
    const double began = now_ms();
    const sluice::DispatchResult sent = comm.dispatch(args);
    expect_error<sluice::PeerError>([&] { sent.ready.wait(); });
    EXPECT_LT(now_ms() - began, (700 + 1000) * slower());
  });
}

PROMISE(F7, waiting_is_counted_for_the_rank_that_was_late, {{2, 3}}) {
  constexpr int rounds = 5;
  constexpr double delay_ms = 60;
  Recipe recipe = small_recipe(at.ranks, 7);
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    round_trip(comm, job, self.rank, {});
    CallVector<std::int64_t> waited(index(self.size), 0);
    for (int round = 0; round < rounds; ++round) {
      const auto brought = bring(job.problem, self.rank);
      brought->args.waited = sluice::TensorView(waited.data(), DataType::int64, self.size);
      self.group.barrier();
      if (self.rank == 1) sleep_ms(delay_ms);
      comm.dispatch(brought->args).ready.wait();
    }
    for (int r = 0; r < self.size; ++r) {
      const double ms = static_cast<double>(waited[index(r)]) * 1e-6;
      if (r == 1 && self.rank != 1) {
        // The machine may add to it; nothing may be missing.
        EXPECT_GE(ms, 0.9 * rounds * delay_ms);
        EXPECT_LE(ms, (1.1 * delay_ms + 20.0 * slower()) * rounds);
      } else {
        EXPECT_LE(ms, (0.1 * delay_ms + 20.0 * slower()) * rounds) << "waited for rank " << r;
      }
      if (r == self.rank) {
        EXPECT_EQ(ms, 0) << "waited for itself";
      }
    }
  });
}

PROMISE(F7, waiting_in_combine_is_counted_too, {{2, 3}}) {
  const Job job(small_recipe(at.ranks, 8));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const Half half = first_half(comm, job, self.rank);
    CallVector<std::int64_t> waited(index(self.size), 1000);
    half.returned->args.waited = sluice::TensorView(waited.data(), DataType::int64, self.size);
    self.group.barrier();
    if (self.rank == 1) sleep_ms(100);
    check_combine(job, self.rank, half.call, comm.combine(half.returned->args));
    if (self.rank != 1) {
      EXPECT_GE(waited[1] - 1000, 90'000'000);
    } else {
      EXPECT_LE(waited[0] - 1000, 60'000'000 * slower());
    }
    EXPECT_EQ(waited[index(self.rank)], 1000);
  });
}

// Every rank has its own deadline, and the late one comes about when they run out.
struct Race {
  int late_rank = 0;
  int late_ms = 0;
  std::vector<int> deadlines_ms;
};

// The same on all ranks.
Race race_of(int seed, int ranks) {
  Random random(static_cast<std::uint64_t>(seed));
  Race race;
  race.late_rank = static_cast<int>(random.below(ranks));
  race.late_ms = static_cast<int>(random.between(20, 90));
  for (int r = 0; r < ranks; ++r) race.deadlines_ms.push_back(static_cast<int>(random.between(20, 90)));
  return race;
}

// Whoever reports success has all its rows.
PROMISE(F8, success_means_that_every_row_has_arrived, {{2, 3, 4}}) {
  const int rounds = long_runs() ? 200 : 14;
  for (Layout layout : {Layout::packed, Layout::grouped}) {
    Recipe recipe = small_recipe(at.ranks, 88);
    recipe.call.layout = layout;
    recipe.call.counts = Counts::bounded;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      for (int round = 0; round < rounds && !failed_here(); ++round) {
        const Race race = race_of(round, self.size);
        sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
        comm.set_deadline_ms(race.deadlines_ms[index(self.rank)]);
        const auto brought = bring(job.problem, self.rank);
        self.group.barrier();
        if (self.rank == race.late_rank) sleep_ms(race.late_ms);
        try {
          const sluice::DispatchResult sent = comm.dispatch(brought->args);
          sent.ready.wait();
          check_dispatch(job, self.rank, sent, *brought);
        } catch (const sluice::PeerError&) {
        }
        self.group.barrier();
      }
    });
  }
}

// Whoever reports success has the whole sum.
PROMISE(F8, a_combine_that_reports_success_is_complete, {{2, 3, 4}}) {
  const int rounds = long_runs() ? 200 : 12;
  Recipe recipe = small_recipe(at.ranks, 11);
  recipe.call.layout = Layout::grouped;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    for (int round = 0; round < rounds && !failed_here(); ++round) {
      const Race race = race_of(round + 50, self.size);
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      const Half half = first_half(comm, job, self.rank);
      comm.set_deadline_ms(race.deadlines_ms[index(self.rank)]);
      self.group.barrier();
      if (self.rank == race.late_rank) sleep_ms(race.late_ms);
      try {
        check_combine(job, self.rank, half.call, comm.combine(half.returned->args));
      } catch (const sluice::PeerError&) {
      }
      self.group.barrier();
    }
  });
}

}  // namespace
}  // namespace conformance
