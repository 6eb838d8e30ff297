// C2, C4 to C8 and C10: bounded calls, padding, capacity, illegal calls, life times, workers, several of all.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

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
  recipe.experts = 4 * at.ranks;
  recipe.tokens = {12, 5, 17};
  return recipe;
}

PROMISE(C2, bounded_dispatch_and_combine_do_not_wait_for_peers, {{2, 3}}) {
  Recipe recipe = base(at, 1);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    round_trip(comm, job, self.rank, {});  // warm-up
    const auto brought = bring(job.problem, self.rank);
    self.group.barrier();
    if (self.rank == 0) sleep_ms(400);
    const double start = now_ms();
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    sluice::CombineArgs args;
    args.rows = sent.rows;
    args.route = sent.route;
    const sluice::CombineResult home = comm.combine(args);
    if (self.rank != 0) {
      EXPECT_LT(now_ms() - start, 200) << "the calls waited for rank 0";
      EXPECT_FALSE(sent.ready.query());
      EXPECT_FALSE(sent.ready.wait_for(20));
    }
    home.ready.wait();
    EXPECT_TRUE(sent.ready.query());
    EXPECT_TRUE(sent.ready.wait_for(0));
    sluice::Event().wait();
    EXPECT_TRUE(sluice::Event().query());
  });
}

// Case 6: the arena holds sevens and NaN from earlier results before the call under test.
PROMISE(C4, padding_is_clean_even_over_old_memory, {{2, 3}}) {
  for (Layout layout : layouts)
    for (Quantise form : {Quantise::none, Quantise::e4m3}) {
      Recipe recipe = base(at, 6);
      recipe.experts = 16 * at.ranks;
      recipe.tokens = {3, 1};
      recipe.max_tokens = 128;
      recipe.call.counts = Counts::bounded;
      recipe.call.capacity = 128;
      recipe.call.hidden = 1024;
      recipe.call.layout = layout;
      recipe.call.quantise = form;
      recipe.call.scales = form == Quantise::none ? 4 : 0;
      recipe.call.alignment = layout == Layout::grouped ? 4 : 1;
      for (bool zero : {false, true}) {
        recipe.call.zero_padding = zero;
        const Job job(recipe);
        run_ranks(at.place, at.ranks, [&](Rank& self) {
          sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
          for (int turn = 0; turn < 4 && !failed_here(); ++turn) {
            const auto brought = bring(job.problem, self.rank);
            sluice::DispatchResult sent = comm.dispatch(brought->args);
            check_dispatch(job, self.rank, sent, *brought);
            // The caller may write its results; the next one gets the same memory.
            const float nan = std::numeric_limits<float>::quiet_NaN();
            const std::int64_t bytes = sent.rows.elements() * sluice::size_of(sent.rows.dtype);
            const Bytes full(index(bytes), std::byte{0xff});
            store(sent.rows.data, full.data(), full.size());
            overwrite(sent.local_ids, std::int32_t{7});
            overwrite(sent.weights, nan);
            overwrite(sent.scales, nan);
          }
        });
      }
    }
}

// Case 13: alignment; aligned rows are never counted as tokens.
PROMISE(C4, aligned_and_unaligned_counts_are_both_there, {{1, 2, 4}}) {
  for (std::int64_t alignment : {1, 2, 16, 100, 128})
    for (Counts counts : {Counts::exact, Counts::bounded}) {
      Recipe recipe = base(at, 13);
      recipe.call.layout = Layout::grouped;
      recipe.call.alignment = alignment;
      recipe.call.counts = counts;
      recipe.call.topk = 3;
      recipe.call.zero_padding = alignment == 16;
      const Job job(recipe);
      run_ranks(at.place, at.ranks, [&](Rank& self) {
        Round round;
        round.manner.load = true;
        run_job(self, job, round);
      });
    }
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
      Recipe recipe = base(at, 51);
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
        Recipe recipe = base(at, 52);
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

// Case 4: over the limit on one rank.
PROMISE(C6, more_tokens_than_max_tokens_is_refused_and_the_next_call_works, {{2, 3}}) {
  Recipe recipe = base(at, 4);
  recipe.tokens = {129, 5};
  recipe.max_tokens = 128;
  const Job over(recipe);
  recipe.tokens = {128, 5};
  const Job legal(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(legal.problem, self.engine));
    for (int turn = 0; turn < 3; ++turn) {
      const auto brought = bring(over.problem, self.rank);
      const double start = now_ms();
      const auto call = [&] { comm.dispatch(brought->args).ready.wait(); };
      if (over.problem.inputs[index(self.rank)].tokens > 128)
        expect_error<sluice::ArgumentError>(call, {"129", "128"});
      else
        expect_error<sluice::PeerError>(call, {"rank 0 refused"});
      EXPECT_LT(now_ms() - start, 5000);
      round_trip(comm, legal, self.rank, {});
    }
  });
}

// One illegal argument after another, on one rank each time.
PROMISE(C6, any_illegal_argument_is_refused_at_once_and_the_next_call_works, {{2, 3}}) {
  const Job job(base(at, 61));
  using Spoil = void (*)(sluice::DispatchArgs&);
  const Spoil spoils[] = {[](sluice::DispatchArgs& a) { a.rows = {}; },
                          [](sluice::DispatchArgs& a) { a.rows.data = nullptr; },
                          [](sluice::DispatchArgs& a) { a.expert_ids = {}; },
                          [](sluice::DispatchArgs& a) { a.expert_ids.dtype = DataType::fp32; },
                          [](sluice::DispatchArgs& a) { a.expert_ids.shape[0] += 1; },
                          [](sluice::DispatchArgs& a) { a.weights.dtype = DataType::bf16; },
                          [](sluice::DispatchArgs& a) { a.weights.shape[1] -= 1; },
                          [](sluice::DispatchArgs& a) { a.rank_mask = a.expert_ids; },
                          [](sluice::DispatchArgs& a) { a.rows.strides[1] = 2; },
                          [](sluice::DispatchArgs& a) { a.num_sms = -1; },
                          [](sluice::DispatchArgs& a) { a.capacity = -5; },
                          [](sluice::DispatchArgs& a) { a.alignment = 0; }};
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    int turn = 0;
    for (const Spoil spoil : spoils) {
      SCOPED_TRACE("spoil " + std::to_string(turn));
      const int bad = turn++ % self.size;
      const auto brought = bring(job.problem, self.rank);
      if (self.rank == bad) spoil(brought->args);
      const auto call = [&] { comm.dispatch(brought->args).ready.wait(); };
      if (self.rank == bad)
        expect_error<sluice::ArgumentError>(call);
      else
        expect_error<sluice::PeerError>(call, {"rank " + std::to_string(bad) + " refused"});
      if (failed_here()) return;
    }
    round_trip(comm, job, self.rank, {});
  });
}

PROMISE(C6, an_illegal_combine_is_refused_and_the_next_works, {{2, 3}}) {
  const Job job(base(at, 62));
  using Spoil = void (*)(sluice::CombineArgs&);
  const Spoil spoils[] = {[](sluice::CombineArgs& a) { a.rows = {}; },
                          [](sluice::CombineArgs& a) { a.route = {}; },
                          [](sluice::CombineArgs& a) { a.rows.shape[0] += 1; },
                          [](sluice::CombineArgs& a) { a.weights.shape[0] += 1; },
                          [](sluice::CombineArgs& a) { a.rows.dtype = DataType::int64; },
                          [](sluice::CombineArgs& a) { a.rows.dims = 1; }};
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    check_dispatch(job, self.rank, sent, *brought);
    const CombineCall call = combine_call(job.problem);
    const auto returned = give_back(comm, job, self.rank, sent, call);
    int turn = 0;
    for (const Spoil spoil : spoils) {
      SCOPED_TRACE("spoil " + std::to_string(turn));
      const int bad = turn++ % self.size;
      sluice::CombineArgs args = returned->args;
      if (self.rank == bad) spoil(args);
      const auto wrong = [&] { comm.combine(args).ready.wait(); };
      if (self.rank == bad)
        expect_error<sluice::ArgumentError>(wrong);
      else
        expect_error<sluice::PeerError>(wrong, {"rank " + std::to_string(bad) + " refused"});
      if (failed_here()) return;
    }
    check_combine(job, self.rank, call, comm.combine(returned->args));
  });
}

}  // namespace
}  // namespace conformance
