// C5: what a result and an arena have room for.
#include <algorithm>
#include <string>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

Recipe base(const At& at, std::uint64_t seed) {
  Recipe recipe = small_recipe(at.ranks, seed);
  recipe.experts = 3 * at.ranks;
  return recipe;
}

// What rank `rank` sees when rank r has room for capacities[r] rows.
Job with_capacities(const Recipe& recipe, const std::vector<std::int64_t>& capacities, int rank) {
  Job job(recipe);
  for (int r = 0; r < recipe.ranks; ++r) {
    job.problem.call.capacity = capacities[index(r)];
    job.arrivals[index(r)] = arrivals_at(job.problem, r);
  }
  job.problem.call.capacity = capacities[index(rank)];
  return job;
}

PROMISE(C5, capacities_may_differ_between_ranks, {{1, 2, 3, 5}}) {
  for (Layout layout : layouts)
    for (OnOverflow overflow : {OnOverflow::error, OnOverflow::drop}) {
      Recipe recipe = base(at, 53);
      recipe.call.layout = layout;
      recipe.call.counts = Counts::bounded;
      recipe.call.on_overflow = overflow;
      std::vector<std::int64_t> capacities;
      for (int r = 0; r < at.ranks; ++r)
        capacities.push_back(overflow == OnOverflow::drop ? 1 + (7 * r + 3) % 13 : 150 * at.ranks + 5 * r);
      run_ranks(at.place, at.ranks, [&](Rank& self) {
        const Job job = with_capacities(recipe, capacities, self.rank);
        sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
        options.capacity = 0;
        options.arena_bytes = 32 << 20;
        sluice::Communicator comm(self.group, options);
        Round round;
        round.combine.values = true;
        round_trip(comm, job, self.rank, round);
      });
    }
}

// Too little room on one rank alone is everybody's error.
PROMISE(C5, too_little_capacity_on_one_rank_is_told_to_all, {{2, 3}}) {
  Recipe recipe = base(at, 54);
  recipe.routing = Routing::one_set;
  recipe.call.topk = 3 * at.ranks;  // everything goes everywhere
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    for (Counts counts : {Counts::exact, Counts::bounded}) {
      const auto brought = bring(job.problem, self.rank);
      brought->args.counts = counts;
      brought->args.capacity = self.rank == 1 ? 3 : 100;
      expect_error<sluice::CapacityError>([&] { comm.dispatch(brought->args).ready.wait(); },
                                          {"rank 1", "3"});
    }
    round_trip(comm, job, self.rank, {});
  });
}

// A combine behind a bounded dispatch that did not go tells why that one did not.
PROMISE(C5, a_combine_behind_a_dispatch_without_room_names_the_cause, {{2, 3}}) {
  Recipe recipe = base(at, 55);
  recipe.routing = Routing::one_set;
  recipe.call.topk = 3 * at.ranks;
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    brought->args.capacity = self.rank == 1 ? 3 : 100;
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    sluice::CombineArgs back;
    back.rows = sent.rows;
    back.route = sent.route;
    const sluice::CombineResult home = comm.combine(back);
    sluice::DispatchArgs again = brought->args;
    again.expert_ids = {};
    again.weights = {};
    again.route = sent.route;
    const sluice::DispatchResult cached = comm.dispatch(again);
    for (const sluice::Event* event : {&home.ready, &cached.ready}) {
      expect_error<sluice::PeerError>([&] { event->wait(); },
                                      {"the dispatch that made the route did not complete (dispatch on rank",
                                       "rank 1 needs", "but its capacity is 3"});
    }
    expect_error<sluice::CapacityError>([&] { sent.ready.wait(); }, {"rank 1 needs"});
    round_trip(comm, job, self.rank, {});
  });
}

// Rows that the fullest rank (padded: expert) needs.
std::int64_t need_of(const Job& job) {
  std::int64_t need = 0;
  for (const Arrivals& arrivals : job.arrivals) {
    if (job.problem.call.layout != Layout::padded)
      need = std::max(need, arrivals.end);
    else
      for (std::int64_t n : arrivals.per_expert) need = std::max(need, n);
  }
  return need;
}

PROMISE(C5, too_little_capacity_is_an_error_on_every_rank_before_any_row_moves, {{1, 2, 3}}) {
  for (Layout layout : layouts)
    for (Counts counts : {Counts::exact, Counts::bounded}) {
      Recipe recipe = small_recipe(at.ranks, 51);
      recipe.call.layout = layout;
      recipe.call.counts = counts;
      const Job enough(recipe);
      const std::int64_t need = need_of(enough);
      recipe.call.capacity = need - 1;
      const Job job(recipe);
      recipe.call.capacity = need;
      const Job just(recipe);
      run_ranks(at.place, at.ranks, [&](Rank& self) {
        sluice::CommunicatorOptions options = options_for(enough.problem, self.engine);
        options.arena_bytes = 8 << 20;
        sluice::Communicator comm(self.group, options);
        Manner manner;
        manner.own_output = true;
        const auto brought = bring(job.problem, self.rank, manner);
        expect_error<sluice::CapacityError>([&] { comm.dispatch(brought->args).ready.wait(); },
                                            {std::to_string(need), std::to_string(need - 1)});
        for (std::byte b : brought->output) ASSERT_EQ(b, std::byte{0xa5}) << "a row has moved";
        Round round;
        round.manner.own_output = true;
        round_trip(comm, just, self.rank, round);
      });
    }
}

PROMISE(C5, rows_past_the_capacity_are_dropped_by_rule_and_counted, {{1, 2, 3, 5}}) {
  for (Layout layout : layouts)
    for (Counts counts : {Counts::exact, Counts::bounded})
      for (bool own_output : {false, true}) {
        Recipe recipe = small_recipe(at.ranks, 52);
        recipe.call.layout = layout;
        recipe.call.counts = counts;
        recipe.call.alignment = layout == Layout::grouped ? 4 : 1;
        const std::int64_t need = need_of(Job(recipe));
        recipe.call.on_overflow = OnOverflow::drop;
        recipe.call.capacity = std::max<std::int64_t>(1, need * 2 / 3);
        const Job job(recipe);
        run_ranks(at.place, at.ranks, [&](Rank& self) {
          Round round;
          round.manner.own_output = own_output;
          round.combine.values = true;
          run_job(self, job, round);
        });
      }
}

PROMISE(C5, an_output_without_room_is_an_error_before_anything_is_written, {{1, 2, 3}}) {
  for (Layout layout : layouts) {
    for (Counts counts : {Counts::exact, Counts::bounded}) {
      Recipe recipe = small_recipe(at.ranks, 40);
      recipe.call.layout = layout;
      recipe.call.counts = counts;
      const Job job(recipe);
      run_ranks(at.place, at.ranks, [&](Rank& self) {
        sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
        const auto brought = bring(job.problem, self.rank);
        sluice::DispatchArgs args = brought->args;
        const std::int64_t hidden = args.rows.shape[1], local = 4;
        CallBytes canary(4096, std::byte{7});
        args.capacity = 0;
        args.output = layout == Layout::padded
                          ? sluice::TensorView(canary.data(), args.rows.dtype, local, 0, hidden)
                          : sluice::TensorView(canary.data(), args.rows.dtype, 0, hidden);
        expect_error<sluice::CapacityError>([&] { comm.dispatch(args).ready.wait(); }, {"capacity is 0"});
        for (const std::byte byte : canary) ASSERT_EQ(byte, std::byte{7});
        round_trip(comm, job, self.rank, {});
      });
    }
  }
}

PROMISE(C5, a_route_that_delivered_nothing_here_needs_no_room, {{2}}) {
  Recipe recipe = small_recipe(at.ranks, 41);
  recipe.call.counts = Counts::exact;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    auto brought = bring(job.problem, self.rank);
    // All to the experts of rank 0, and each token names one of them once.
    for (std::size_t i = 0; i < brought->ids32.size(); ++i) {
      brought->ids32[i] = i % index(job.problem.call.topk) == 0 ? 1 : -1;
    }
    for (std::size_t i = 0; i < brought->ids64.size(); ++i) {
      brought->ids64[i] = i % index(job.problem.call.topk) == 0 ? 1 : -1;
    }
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    sent.ready.wait();
    sluice::DispatchArgs again;
    again.rows = brought->args.rows;
    again.route = sent.route;
    again.counts = Counts::bounded;
    again.zero_padding = true;
    const sluice::DispatchResult more = comm.dispatch(again);
    more.ready.wait();
    EXPECT_EQ(more.rows.shape[0], self.rank == 0 ? sent.rows.shape[0] : 0);
  });
}

// Results that are held fill the arena of one rank: it says so, its peers are told, and when they are let go
// all is well.
PROMISE(C5, an_arena_that_is_full_is_an_error_and_empties_again, {{1, 2, 3}}) {
  Recipe recipe = small_recipe(at.ranks, 6);
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

// With exact counts the rows take what the arena has; where that is too little, the rank says who has the
// rest.
PROMISE(C5, rows_that_do_not_fit_in_the_arena_name_who_holds_it, {{1, 2}}) {
  Recipe recipe = small_recipe(at.ranks, 7);
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

}  // namespace
}  // namespace conformance
