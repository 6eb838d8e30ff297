// S1 to S6: how many tokens, how many ranks, how large a row, which ids, how uneven.
#include <cstring>
#include <memory>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

void run_recipe(const At& at, const Recipe& recipe, DataType combine_type = DataType::bf16) {
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    Round round;
    round.combine = combine_call(job.problem, combine_type);
    round.combine.values = !recipe.call.mask;
    run_job(self, job, round);
  });
}

Recipe base(const At& at, std::uint64_t seed) {
  Recipe recipe;
  recipe.seed = seed;
  recipe.ranks = at.ranks;
  recipe.experts = 2 * at.ranks;
  recipe.tokens = {5, 11, 2};
  return recipe;
}

// Case 1: nothing to send; the idle rank alternates, plain and cached.
PROMISE(S1, nothing_to_send, {{1, 2, 3}}) {
  for (Layout layout : layouts)
    for (const std::vector<std::int64_t>& tokens : {std::vector<std::int64_t>{1, 0}, {64, 0}, {0, 0}}) {
      std::vector<Job> jobs;
      for (int idle = 0; idle < 2; ++idle) {
        Recipe recipe = base(at, 10 + static_cast<std::uint64_t>(idle));
        recipe.experts = 12 * at.ranks;
        recipe.call.topk = 8;
        recipe.call.layout = layout;
        recipe.tokens = idle == 1 ? tokens : std::vector<std::int64_t>{tokens[1], tokens[0]};
        recipe.max_tokens = 64;
        jobs.emplace_back(recipe);
      }
      run_ranks(at.place, at.ranks, [&](Rank& self) {
        sluice::Communicator comm(self.group, options_for(jobs[0].problem, self.engine));
        for (int turn = 0; turn < 20 && !failed_here(); ++turn) {
          const Job& job = jobs[index(turn % 2)];
          const auto brought = bring(job.problem, self.rank);
          const sluice::DispatchResult sent = comm.dispatch(brought->args);
          check_dispatch(job, self.rank, sent, *brought);
          brought->args.expert_ids = {};
          brought->args.route = sent.route;
          const sluice::DispatchResult again = comm.dispatch(brought->args);
          check_dispatch(job, self.rank, again, *brought);
          const CombineCall call = combine_call(job.problem);
          const auto returned = give_back(comm, job, self.rank, again, call);
          check_combine(job, self.rank, call, comm.combine(returned->args));
        }
      });
    }
}

// Case 2: nothing to receive; the empty rank must not run ahead.
PROMISE(S1, nothing_to_receive, {{2, 4}}) {
  Recipe recipe = base(at, 2);
  recipe.experts = 16;
  recipe.tokens = {40};
  recipe.routing = Routing::one_rank;
  recipe.call.topk = 2;
  recipe.call.hidden = 128;
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const CombineCall call = combine_call(job.problem);
    for (int round = 0; round < 200 && !failed_here(); ++round) {
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      if (round % 50 != 49) {  // no host wait in between
        sluice::CombineArgs args;
        args.rows = sent.rows;
        args.route = sent.route;
        comm.combine(args);
        continue;
      }
      check_dispatch(job, self.rank, sent, *brought);
      const auto returned = give_back(comm, job, self.rank, sent, call);
      check_combine(job, self.rank, call, comm.combine(returned->args));
    }
  });
}

// Case 3.
PROMISE(S1, odd_and_unequal_numbers_of_tokens, {{2, 3}}) {
  const std::vector<std::int64_t> tokens[] = {{255, 255}, {255, 256},    {1, 256},
                                              {63, 65},   {672, 640, 1}, {0, 17, 0}};
  for (const auto& list : tokens) {
    Recipe recipe = base(at, static_cast<std::uint64_t>(list[0]) + 3);
    recipe.experts = list[0] % 2 ? 12 : 252;
    recipe.call.topk = 4;
    recipe.tokens = list;
    recipe.call.layout = layouts[index(list[0] % 3)];
    recipe.call.hidden = 32;
    run_recipe(at, recipe);
  }
}

PROMISE(S2, even_split, {all_sizes}) {
  Recipe recipe = base(at, 22);
  recipe.experts = 8 * at.ranks;
  recipe.call.layout = Layout::grouped;
  run_recipe(at, recipe);
}

PROMISE(S2, any_contiguous_split, {{2, 3, 5, 8, 16}}) {
  for (Layout layout : layouts) {
    Recipe recipe = base(at, 23);
    Random random(at.ranks);
    recipe.first = {0};
    for (int r = 0; r < at.ranks; ++r)
      recipe.first.push_back(recipe.first.back() + static_cast<int>(random.below(6)) * (r % 4 != 1));
    recipe.first.back() += 5;
    recipe.experts = recipe.first.back();
    recipe.call.layout = layout;
    run_recipe(at, recipe);
  }
}

PROMISE(S2, sixty_four_ranks_as_threads, {{64}, Where::threads}) {
  Recipe recipe = base(at, 24);
  recipe.experts = 128;
  recipe.call.topk = 8;
  run_recipe(at, recipe);
  recipe.call.layout = Layout::grouped;
  recipe.call.counts = Counts::bounded;
  run_recipe(at, recipe);
}

PROMISE(S2, experts_that_cannot_be_split_evenly_are_one_clear_error, {{3}}) {
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options;
    options.engine = self.engine;
    options.experts = 256;
    options.max_tokens = 8;
    options.hidden = 64;
    expect_error<sluice::ArgumentError>([&] { sluice::Communicator(self.group, options); }, {"256", "3"});
    options.first_expert = {0, 100, 200, 256};
    EXPECT_NO_THROW(sluice::Communicator(self.group, options));
  });
}

PROMISE(S3, any_multiple_of_sixteen_bytes, {{2, 3}}) {
  for (std::int64_t bytes : {16, 32, 48, 1040, 4080, 32784, 65520, 65536}) {
    Recipe recipe = base(at, static_cast<std::uint64_t>(bytes));
    recipe.call.hidden = bytes / 2;
    recipe.call.layout = layouts[index(bytes / 16 % 3)];
    run_recipe(at, recipe);
  }
}

PROMISE(S3, row_bytes_outside_the_rule_are_refused, {{2}}) {
  const Job job(base(at, 5));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    for (std::int64_t hidden : {0, 4, 63, 32776}) {
      const auto brought = bring(job.problem, self.rank);
      brought->rows.assign(1 << 20, std::byte{0});
      brought->args.rows = sluice::ConstTensorView(brought->rows.data(), DataType::bf16,
                                                   job.problem.inputs[index(self.rank)].tokens, hidden);
      expect_error<sluice::ArgumentError>([&] { comm.dispatch(brought->args); });
    }
    round_trip(comm, job, self.rank, {});
  });
}

// Rows begin at multiples of 16 bytes: anything else is one clear error, and no crash of a vector load.
PROMISE(S3, rows_that_begin_elsewhere_are_refused, {{1, 2}}) {
  const Job job(small_recipe(at.ranks, 55));
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

// Case 15: the shapes of real models, few tokens.
PROMISE(S3, shapes_of_real_models, {{1, 4, 8}}) {
  const int models[][2] = {{8, 2},   {64, 6},   {128, 4},  {160, 6},  {256, 8},  {288, 8},
                           {384, 8}, {512, 10}, {512, 22}, {896, 16}, {2048, 32}};
  const std::int64_t widths[] = {2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192};
  std::size_t turn = 0;
  for (const auto& model : models) {
    Recipe recipe = base(at, 300 + turn);
    recipe.experts = model[0];
    recipe.call.topk = model[1];
    recipe.call.hidden = widths[turn % 8];
    recipe.call.layout = layouts[turn % 3];
    recipe.call.counts = turn % 2 ? Counts::exact : Counts::bounded;
    recipe.call.weights = turn % 4 != 3;
    recipe.tokens = {3, 4};
    run_recipe(at, recipe);
    ++turn;
  }
}

PROMISE(S3, topk_from_1_to_64, {{2, 3}}) {
  for (int topk : {1, 2, 3, 7, 31, 33, 63, 64})
    for (Layout layout : layouts) {
      Recipe recipe = base(at, static_cast<std::uint64_t>(topk));
      recipe.experts = 48 * at.ranks;
      recipe.call.topk = topk;
      recipe.call.hidden = 16;
      recipe.call.layout = layout;
      run_recipe(at, recipe);
    }
}

PROMISE(S3, sixty_five_thousand_experts, {{2}}) {
  for (Layout layout : {Layout::packed, Layout::grouped}) {
    Recipe recipe = base(at, 65);
    recipe.experts = 65536;
    recipe.call.topk = 16;
    recipe.call.layout = layout;
    recipe.tokens = {6, 9};
    run_recipe(at, recipe);
  }
}

PROMISE(S4, int32_and_int64_ids_give_the_same_result, {{2, 3}}) {
  for (Layout layout : layouts)
    for (DataType type : {DataType::int32, DataType::int64}) {
      Recipe recipe = base(at, 44);
      recipe.call.id_type = type;
      recipe.call.layout = layout;
      recipe.missing = 0.4;
      run_recipe(at, recipe);
    }
}

// Case 14. Unchecked: what is no expert is dropped, an expert twice is passed on or is one row.
PROMISE(S4, unchecked_ids_touch_nothing_else, {{1, 2, 4}}) {
  for (Layout layout : layouts)
    for (DataType type : {DataType::int32, DataType::int64}) {
      Recipe recipe = base(at, 45);
      recipe.call.id_type = type;
      recipe.call.layout = layout;
      recipe.call.checks = Checks::off;
      recipe.call.topk = 5;
      recipe.missing = 0.1;
      recipe.twice = 0.4;
      recipe.outside = 0.3;
      recipe.call.counts = type == DataType::int32 ? Counts::exact : Counts::bounded;
      run_recipe(at, recipe);
    }
}

struct BadId {
  std::int64_t value;
  DataType type;
};

// An illegal id in exact mode: in the call, on the rank that brought it; the peers are refused.
void bad_id(const At& at, Counts counts, const BadId& bad) {
  Recipe recipe = base(at, 46);
  recipe.call.id_type = bad.type;
  recipe.call.counts = counts;
  recipe.call.checks = Checks::on;
  recipe.tokens = {5};
  const Job legal(recipe);
  Job job(recipe);
  std::vector<std::int64_t>& ids = job.problem.inputs[1].ids;
  const std::size_t at_row_3_column_2 = index(3 * recipe.call.topk + 2);
  const std::int64_t value = bad.value == -100 ? 2 * at.ranks : bad.value;
  ids[at_row_3_column_2] = value;
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    for (int turn = 0; turn < (counts == Counts::exact ? 2 : 1); ++turn) {
      const auto brought = bring(job.problem, self.rank);
      const auto call = [&] { comm.dispatch(brought->args).ready.wait(); };
      if (self.rank == 1)
        expect_error<sluice::ArgumentError>(call, {"rank 1", std::to_string(value), "row 3", "column 2"});
      else
        expect_error<sluice::PeerError>(call, {"rank 1 refused"});
      if (counts == Counts::exact) round_trip(comm, legal, self.rank, {});
    }
  });
}

PROMISE(S4, a_checked_id_out_of_range_is_an_error_with_its_place, {{2, 3}}) {
  for (Counts counts : {Counts::exact, Counts::bounded})
    for (const BadId& bad :
         {BadId{-100, DataType::int32}, BadId{-2, DataType::int32},
          BadId{std::int64_t{1} << 31, DataType::int64}, BadId{std::int64_t{1} << 40, DataType::int64}})
      bad_id(at, counts, bad);
}

PROMISE(S4, a_checked_expert_twice_is_an_error_with_its_place, {{2}}) {
  Recipe recipe = base(at, 47);
  recipe.experts = 8;
  recipe.call.checks = Checks::on;
  const Job legal(recipe);
  Job job(recipe);
  for (int k = 0; k < 4; ++k) job.problem.inputs[0].ids[index(4 + k)] = k == 3 ? 5 : k == 1 ? 5 : -1;
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const auto call = [&] { comm.dispatch(brought->args).ready.wait(); };
    if (self.rank == 0)
      expect_error<sluice::ArgumentError>(call, {"rank 0", "5", "row 1", "twice"});
    else
      expect_error<sluice::PeerError>(call, {"rank 0 refused"});
    round_trip(comm, legal, self.rank, {});
  });
}

}  // namespace
}  // namespace conformance
