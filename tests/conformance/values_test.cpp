// V1, V2, V3 and V7: what arrives, in which order, and how it is added.
#include <cfenv>
#include <cstring>
#include <limits>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

std::vector<std::int64_t> odd_tokens() { return {13, 7, 16, 1, 0, 22}; }

Recipe base(const At& at, Layout layout, std::uint64_t seed) {
  Recipe recipe;
  recipe.seed = seed;
  recipe.ranks = at.ranks;
  recipe.experts = 3 * at.ranks;
  recipe.tokens = odd_tokens();
  recipe.missing = 0.15;
  recipe.call.layout = layout;
  return recipe;
}

// One group, several jobs one after the other, each with a communicator of its own.
void run_jobs(const At& at, const std::vector<Job>& jobs, const Round& round = {}) {
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    for (const Job& job : jobs) {
      Round mine = round;
      if (mine.combine.hidden != combine_call(job.problem).hidden) mine.combine = combine_call(job.problem);
      run_job(self, job, mine);
      if (failed_here()) return;
    }
  });
}

std::vector<Job> one_per_layout(const At& at, Counts counts,
                                const std::function<void(Recipe&)>& change = {}) {
  std::vector<Job> jobs;
  for (Layout layout : layouts) {
    Recipe recipe = base(at, layout, 100 + static_cast<std::uint64_t>(at.ranks));
    recipe.call.counts = counts;
    recipe.call.alignment = layout == Layout::grouped ? 8 : 1;
    if (change) change(recipe);
    jobs.emplace_back(recipe);
  }
  return jobs;
}

PROMISE(V1, each_token_arrives_once_per_rank_that_owns_a_chosen_expert_exact, {all_sizes}) {
  run_jobs(at, one_per_layout(at, Counts::exact, [](Recipe& r) { r.call.scales = 4; }));
}

PROMISE(V1, each_token_arrives_once_per_rank_that_owns_a_chosen_expert_bounded, {all_sizes}) {
  run_jobs(at, one_per_layout(at, Counts::bounded, [](Recipe& r) { r.call.scales = 4; }));
}

PROMISE(V1, a_rank_mask_says_where_rows_go, {{1, 2, 3, 8}}) {
  std::vector<Job> jobs;
  for (Counts counts : {Counts::exact, Counts::bounded}) {
    Recipe recipe = base(at, Layout::packed, 31);
    recipe.call.mask = true;
    recipe.call.counts = counts;
    jobs.emplace_back(recipe);
  }
  run_jobs(at, jobs);
}

PROMISE(V1, strided_inputs_own_outputs_and_statistics, {{1, 2, 4, 5}}) {
  Round round;
  round.manner = {.strided = true, .own_output = true, .load = true, .waited = true, .num_sms = 0};
  for (Counts counts : {Counts::exact, Counts::bounded})
    run_jobs(at,
             one_per_layout(at, counts,
                            [&](Recipe& r) {
                              r.call.scales = 5;
                              r.call.capacity = 24 * 8 * at.ranks;
                            }),
             round);
}

PROMISE(V1, a_weight_keeps_its_bits_in_every_layout, {{1, 2}}) {
  for (Layout layout : layouts) {
    Recipe recipe = small_recipe(at.ranks, 42);
    recipe.call.layout = layout;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      constexpr std::int64_t tokens = 4, hidden = 64;
      const std::uint32_t bits[tokens] = {0x80000000u, 0x7f800001u, 0xffa00001u, 0x00000001u};
      CallVector<float> rows(tokens * hidden, 1.0f), weights(tokens);
      CallVector<std::int32_t> ids(tokens);
      std::memcpy(weights.data(), bits, sizeof(bits));
      for (std::int64_t t = 0; t < tokens; ++t)
        ids[index(t)] = static_cast<std::int32_t>(4 * self.rank + t);
      sluice::DispatchArgs args;
      args.rows = sluice::ConstTensorView(rows.data(), DataType::fp32, tokens, hidden);
      args.expert_ids = sluice::ConstTensorView(ids.data(), DataType::int32, tokens, 1);
      args.weights = sluice::ConstTensorView(weights.data(), DataType::fp32, tokens, 1);
      args.layout = layout;
      args.capacity = layout == Layout::padded ? 1 : 0;
      const sluice::DispatchResult sent = comm.dispatch(args);
      sent.ready.wait();
      const std::vector<float> arrived = elements_of<float>(sent.weights);
      ASSERT_EQ(arrived.size(), index(tokens));
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::uint32_t got = 0;
        std::memcpy(&got, &arrived[index(t)], sizeof(got));
        EXPECT_EQ(got, bits[t]) << "weight " << t;
      }
    });
  }
}

// Delays so that another rank is the last one each time.
void wander(Random& random, double most_us) { sleep_ms(random.unit() * most_us / 1000.0); }

PROMISE(V2, fifty_runs_with_random_delays_give_identical_bytes, {{2, 3, 4}}) {
  for (Layout layout : layouts) {
    Recipe recipe = base(at, layout, 77);
    recipe.call.counts = layout == Layout::grouped ? Counts::exact : Counts::bounded;
    const Job job(recipe);
    const CombineCall call = combine_call(job.problem);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      Random random(static_cast<std::uint64_t>(self.rank) + 5);
      sluice::Route route;
      for (int run = 0; run < 50 && !failed_here(); ++run) {
        const auto brought = bring(job.problem, self.rank);
        if (run % 2 == 1) {  // cached
          brought->args.expert_ids = {};
          brought->args.route = route;
        }
        wander(random, 100);
        const sluice::DispatchResult sent = comm.dispatch(brought->args);
        route = sent.route;
        check_dispatch(job, self.rank, sent, *brought);
        const auto returned = give_back(comm, job, self.rank, sent, call);
        wander(random, 100);
        const sluice::CombineResult home = comm.combine(returned->args);
        wander(random, 100);
        check_combine(job, self.rank, call, home);
      }
    });
  }
}

// Every switch of combine, over one dispatch.
void combine_variants(const At& at, Layout layout, DataType type, Fill fill) {
  Recipe recipe = base(at, layout, 500 + static_cast<std::uint64_t>(type));
  recipe.experts = 4 * at.ranks;
  recipe.call.topk = 6;
  recipe.call.dtype = type;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.arena_bytes = 8 << 20;
    sluice::Communicator comm(self.group, options);
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    check_dispatch(job, self.rank, sent, *brought);
    for (int variant = 0; variant < 12 && !failed_here(); ++variant) {
      CombineCall call = combine_call(job.problem, type);
      call.weights = variant % 2 == 0;
      call.biases = variant % 3;
      call.single_rounding = variant % 4 >= 2;
      call.values = variant % 5 < 2;
      call.fill = fill;
      call.seed = static_cast<std::uint64_t>(variant) + 1;
      const Memory memory = static_cast<Memory>(variant % 3);
      const auto returned = give_back(comm, job, self.rank, sent, call,
                                      memory == Memory::in_place ? Memory::own : memory, variant % 2 == 1);
      check_combine(job, self.rank, call, comm.combine(returned->args));
    }
  });
}

PROMISE(V3, combine_adds_in_ascending_rank_and_expert_bf16, {{1, 2, 3, 5, 8}}) {
  for (Layout layout : layouts) combine_variants(at, layout, DataType::bf16, Fill::tame);
}

PROMISE(V3, combine_adds_in_ascending_rank_and_expert_fp16, {{2, 4}}) {
  for (Layout layout : layouts) combine_variants(at, layout, DataType::fp16, Fill::tame);
}

PROMISE(V3, combine_adds_in_ascending_rank_and_expert_fp32, {{2, 7}}) {
  for (Layout layout : layouts) combine_variants(at, layout, DataType::fp32, Fill::tame);
}

// NaN, infinities, subnormals, zeros of both signs, numbers that overflow: still the same bits.
PROMISE(V3, combine_of_special_numbers_gives_the_bits_of_the_scalar_sum, {{1, 3}}) {
  for (Layout layout : layouts)
    for (DataType type : {DataType::bf16, DataType::fp16, DataType::fp32})
      combine_variants(at, layout, type, Fill::wild);
}

// Case 18. Ten thousand rounds in the long form.
PROMISE(V3, sums_stay_within_the_bound_of_one_rounding, {{2}}) {
  const int rounds = long_runs() ? 10000 : 200;
  for (Layout layout : {Layout::packed, Layout::grouped}) {
    Recipe recipe = base(at, layout, 18);
    recipe.experts = 16;
    recipe.call.topk = 8;
    recipe.call.hidden = 32;
    const Job job(recipe);
    run_ranks(at.place, at.ranks,
              [&](Rank& self) {
                sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
                const auto brought = bring(job.problem, self.rank);
                const sluice::DispatchResult sent = comm.dispatch(brought->args);
                for (int round = 0; round < rounds && !failed_here(); ++round) {
                  CombineCall call = combine_call(job.problem);
                  call.seed = static_cast<std::uint64_t>(round) + 1000;
                  const auto returned = give_back(comm, job, self.rank, sent, call);
                  check_combine(job, self.rank, call, comm.combine(returned->args));
                }
              },
              {.timeout_s = 600, .lost = {}, .leave_s = 5, .no_group = false});
  }
}

// A combine of another width and type than the dispatch: what an expert makes need not look like its input.
PROMISE(V3, combine_takes_other_types_and_widths_than_dispatch, {{2, 3}}) {
  for (Layout layout : layouts) {
    Recipe recipe = base(at, layout, 9);
    recipe.call.dtype = DataType::int8;
    recipe.call.hidden = 48;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
      options.arena_bytes = 8 << 20;
      sluice::Communicator comm(self.group, options);
      const auto brought = bring(job.problem, self.rank);
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      for (DataType type : {DataType::fp16, DataType::fp32, DataType::bf16}) {
        CombineCall call = combine_call(job.problem, type);
        call.hidden = type == DataType::fp32 ? 36 : 80;
        const auto returned = give_back(comm, job, self.rank, sent, call);
        check_combine(job, self.rank, call, comm.combine(returned->args));
      }
    });
  }
}

PROMISE(V3, exceptions_that_the_caller_has_unmasked_do_not_trap, {{1, 2}, Where::processes}) {
  if (on_cuda() || sanitized) GTEST_SKIP() << "of processors";
  Recipe recipe = small_recipe(at.ranks, 47);
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator before(self.group, options_for(job.problem, self.engine));
    feenableexcept(FE_INVALID | FE_OVERFLOW | FE_DIVBYZERO);
    sluice::Communicator after(self.group, options_for(job.problem, self.engine));
    constexpr std::int64_t tokens = 3, hidden = 128;
    CallVector<float> rows(tokens * hidden, std::numeric_limits<float>::max());
    for (std::int64_t h = 0; h < hidden; ++h) {
      const std::uint32_t signalling = 0x7f800001u;
      std::memcpy(&rows[index(hidden + h)], &signalling, sizeof(signalling));
    }
    CallVector<std::int32_t> ids(2 * tokens);
    for (std::int64_t i = 0; i < 2 * tokens; ++i) ids[index(i)] = static_cast<std::int32_t>(i % 4);
    for (sluice::Communicator* comm : {&before, &after}) {
      sluice::DispatchArgs args;
      args.rows = sluice::ConstTensorView(rows.data(), DataType::fp32, tokens, hidden);
      args.expert_ids = sluice::ConstTensorView(ids.data(), DataType::int32, tokens, 2);
      args.layout = Layout::grouped;
      const sluice::DispatchResult sent = comm->dispatch(args);
      sluice::CombineArgs back;
      back.rows = sent.rows;
      back.route = sent.route;
      const sluice::CombineResult home = comm->combine(back);
      home.ready.wait();
      EXPECT_EQ(elements_of<float>(home.rows)[0], std::numeric_limits<float>::infinity());
      args.quantise = Quantise::e4m3;
      comm->dispatch(args).ready.wait();
    }
    fedisableexcept(FE_ALL_EXCEPT);
  });
}

PROMISE(V7, every_element_type_with_any_scales, {{2, 3}}) {
  struct Kind {
    DataType type;
    std::int64_t hidden, scales;
    DataType scale_type;
  };
  const Kind kinds[] = {
      {DataType::bf16, 72, 0, DataType::fp32},    {DataType::fp16, 8, 1, DataType::fp32},
      {DataType::fp32, 4, 2, DataType::bf16},     {DataType::e4m3, 2880, 23, DataType::fp32},
      {DataType::e5m2, 144, 8, DataType::uint8},  {DataType::int8, 16, 1, DataType::int32},
      {DataType::fp4x2, 128, 16, DataType::e4m3}, {DataType::e4m3, 512, 4, DataType::uint8},
      {DataType::uint8, 32, 3, DataType::int64}};
  for (bool column : {false, true}) {
    std::vector<Job> jobs;
    int turn = 0;
    for (const Kind& kind : kinds) {
      Recipe recipe = base(at, layouts[turn % 3], 70 + static_cast<std::uint64_t>(turn));
      ++turn;
      recipe.call.dtype = kind.type;
      recipe.call.hidden = kind.hidden;
      recipe.call.scales = kind.scales;
      recipe.call.scale_type = kind.scale_type;
      recipe.call.counts = turn % 2 == 0 ? Counts::exact : Counts::bounded;
      recipe.call.scale_layout = column ? ScaleLayout::column : ScaleLayout::row;
      if (kind.type == DataType::uint8) continue;  // left out here
      jobs.emplace_back(recipe);
    }
    Round round;
    round.manner.strided = column;
    run_jobs(at, jobs, round);
  }
}

PROMISE(V7, types_that_combine_cannot_add_are_refused, {{2}}) {
  const Job job(base(at, Layout::packed, 4));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    CombineCall call = combine_call(job.problem);
    const auto returned = give_back(comm, job, self.rank, sent, call);
    sluice::CombineArgs wrong = returned->args;
    wrong.rows.dtype = DataType::e4m3;
    expect_error<sluice::ArgumentError>([&] { comm.combine(wrong).ready.wait(); });
    check_combine(job, self.rank, call, comm.combine(returned->args));
  });
}

// Weights of an expert that a token names twice: a NaN that their sum makes is computed, one that stands alone is moved.
PROMISE(V4, a_nan_made_by_adding_weights_is_canonical_and_one_alone_keeps_its_bits, {{1}}) {
  constexpr std::uint32_t inf = 0x7f800000, minus_inf = 0xff800000, one = 0x3f800000;
  constexpr std::uint32_t odd_nan = 0x7fa12345, negative_nan = 0xffc54321, nan = 0x7fc00000;
  constexpr std::int64_t tokens = 4, topk = 3;
  for (Layout layout : {Layout::grouped, Layout::padded}) {
    Recipe recipe = base(at, layout, 5);
    recipe.experts = 2;
    recipe.call.topk = topk;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      const CallVector<std::uint16_t> rows(tokens * 64, 0x3f80);
      const CallVector<std::int32_t> ids{0, 0, -1, 0, -1, 0, 0, 0, 0, -1, 0, -1};
      const CallVector<std::uint32_t> weights{inf, minus_inf, one, odd_nan, one, one, one, negative_nan, one, one, odd_nan, one};
      sluice::DispatchArgs args;
      args.rows = sluice::ConstTensorView(rows.data(), DataType::bf16, tokens, 64);
      args.expert_ids = sluice::ConstTensorView(ids.data(), DataType::int32, tokens, topk);
      args.weights = sluice::ConstTensorView(weights.data(), DataType::fp32, tokens, topk);
      args.layout = layout;
      args.capacity = tokens;
      args.checks = sluice::Checks::off;
      const sluice::DispatchResult sent = comm.dispatch(args);
      sent.ready.wait();
      std::vector<std::uint32_t> got = elements_of<std::uint32_t>(sent.weights);
      got.resize(tokens);  // of expert 0
      EXPECT_EQ(got, (std::vector<std::uint32_t>{nan, nan, nan, odd_nan}));
    });
  }
}

}  // namespace
}  // namespace conformance
