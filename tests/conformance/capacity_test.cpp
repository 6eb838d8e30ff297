// More of C5, S3 and F1: capacities that differ between ranks, rows that begin anywhere, a late creation.
#include <cstring>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr Layout layouts[] = {Layout::packed, Layout::grouped, Layout::padded};

Recipe base(const At& at, std::uint64_t seed) {
  Recipe recipe;
  recipe.seed = seed;
  recipe.ranks = at.ranks;
  recipe.experts = 3 * at.ranks;
  recipe.tokens = {12, 5, 17};
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

// Rows begin at multiples of 16 bytes: anything else is one clear error, and no crash of a vector load.
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

PROMISE(S3, rows_that_begin_elsewhere_are_refused, {{1, 2}}) {
  const Job job(base(at, 55));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    CallBytes moved(brought->rows.size() + 2);
    std::memcpy(moved.data() + 2, brought->rows.data(), brought->rows.size());
    brought->args.rows.data = moved.data() + 2;
    expect_error<sluice::ArgumentError>([&] { comm.dispatch(brought->args); }, {"16 bytes"});
    round_trip(comm, job, self.rank, {});
  });
}

PROMISE(F1, a_rank_that_comes_late_to_the_creation_is_fine, {{2, 3}}) {
  const Job job(base(at, 56));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    if (self.rank == 1) sleep_ms(500);
    run_job(self, job, {});
  });
}

}  // namespace
}  // namespace conformance
