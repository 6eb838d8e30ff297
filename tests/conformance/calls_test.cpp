// C2, C4 and C6: bounded calls, padding and counts, illegal calls.
#include <limits>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

PROMISE(C2, bounded_dispatch_and_combine_do_not_wait_for_peers, {{2, 3}}) {
  Recipe recipe = small_recipe(at.ranks, 1);
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
      Recipe recipe = small_recipe(at.ranks, 6);
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
      Recipe recipe = small_recipe(at.ranks, 13);
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

// Case 25. Rows per expert, added up over ten calls with -1 and padding.
PROMISE(C4, expert_load_adds_up_over_ten_calls, {{1, 2, 4}}) {
  for (Layout layout : layouts) {
    std::vector<Job> jobs;
    for (int i = 0; i < 10; ++i) {
      Recipe recipe = small_recipe(at.ranks, 250 + static_cast<std::uint64_t>(i));
      recipe.missing = 0.3;
      recipe.max_tokens = 20;
      recipe.call.layout = layout;
      recipe.call.alignment = layout == Layout::grouped ? 8 : 1;
      recipe.call.counts = i % 2 ? Counts::exact : Counts::bounded;
      jobs.emplace_back(recipe);
    }
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, options_for(jobs[0].problem, self.engine));
      CallVector<std::int32_t> load(index(comm.local_experts()), 0), truth = load;
      for (const Job& job : jobs) {
        const auto brought = bring(job.problem, self.rank);
        brought->args.expert_load = sluice::TensorView(load.data(), DataType::int32, comm.local_experts());
        comm.dispatch(brought->args).ready.wait();
        for (const Input& in : job.problem.inputs)
          for (std::int64_t id : in.ids)
            if (job.problem.owner(id) == self.rank) ++truth[index(id - comm.first_expert(self.rank))];
      }
      EXPECT_EQ(load, truth);
    });
  }
}

// Case 4: over the limit on one rank.
PROMISE(C6, more_tokens_than_max_tokens_is_refused_and_the_next_call_works, {{2, 3}}) {
  Recipe recipe = small_recipe(at.ranks, 4);
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
  const Job job(small_recipe(at.ranks, 61));
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

PROMISE(C6, a_channel_that_does_not_exist_is_refused, {{2}}) {
  const Job job(small_recipe(at.ranks, 9));
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

PROMISE(C6, an_illegal_combine_is_refused_and_the_next_works, {{2, 3}}) {
  const Job job(small_recipe(at.ranks, 62));
  using Spoil = void (*)(sluice::CombineArgs&);
  const Spoil spoils[] = {[](sluice::CombineArgs& a) { a.rows = {}; },
                          [](sluice::CombineArgs& a) { a.route = {}; },
                          [](sluice::CombineArgs& a) { a.rows.shape[0] += 1; },
                          [](sluice::CombineArgs& a) { a.weights.shape[0] += 1; },
                          [](sluice::CombineArgs& a) { a.rows.dtype = DataType::int64; },
                          [](sluice::CombineArgs& a) { a.rows.dims = 1; }};
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const Half half = first_half(comm, job, self.rank);
    int turn = 0;
    for (const Spoil spoil : spoils) {
      SCOPED_TRACE("spoil " + std::to_string(turn));
      const int bad = turn++ % self.size;
      sluice::CombineArgs args = half.returned->args;
      if (self.rank == bad) spoil(args);
      const auto wrong = [&] { comm.combine(args).ready.wait(); };
      if (self.rank == bad)
        expect_error<sluice::ArgumentError>(wrong);
      else
        expect_error<sluice::PeerError>(wrong, {"rank " + std::to_string(bad) + " refused"});
      if (failed_here()) return;
    }
    check_combine(job, self.rank, half.call, comm.combine(half.returned->args));
  });
}

PROMISE(C6, memory_of_an_unknown_type_is_refused, {{1}}) {
  const Job job(small_recipe(at.ranks, 48));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    expect_error<sluice::ArgumentError>([&] { comm.allocate(1, 64, static_cast<DataType>(99)); }, {"dtype"});
  });
}

}  // namespace
}  // namespace conformance
