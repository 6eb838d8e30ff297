// V4, V5 and V6: quantising on the way, gradients, and numbers that must stay where they are.
#include <cmath>
#include <cstring>
#include <limits>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

Recipe base(const At& at, Layout layout, std::uint64_t seed) {
  Recipe recipe;
  recipe.seed = seed;
  recipe.ranks = at.ranks;
  recipe.experts = 4 * at.ranks;
  recipe.tokens = {9, 14, 3};
  recipe.call.layout = layout;
  return recipe;
}

void run_one(const At& at, const Job& job) {
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    Round round;
    round.combine = combine_call(job.problem);
    run_job(self, job, round);
  });
}

void quantised(const At& at, Quantise form) {
  std::uint64_t seed = 40;
  for (DataType type : {DataType::bf16, DataType::fp16, DataType::fp32})
    for (std::int64_t hidden : {16, 128, 144, 256, 2880}) {
      Recipe recipe = base(at, static_cast<Layout>(seed % 3), seed);
      recipe.call.dtype = type;
      recipe.call.hidden = hidden;
      recipe.call.quantise = form;
      recipe.call.counts = seed % 2 == 0 ? Counts::exact : Counts::bounded;
      recipe.call.scale_layout = seed % 4 < 2 ? ScaleLayout::row : ScaleLayout::column;
      recipe.fill = seed % 5 == 0 ? Fill::tame : Fill::wild;
      run_one(at, Job(recipe));
      ++seed;
    }
}

PROMISE(V4, quantised_rows_have_the_bits_of_the_definition, {{1, 3}}) { quantised(at, Quantise::e4m3); }

PROMISE(V4, quantised_rows_with_power_of_two_scales_have_the_bits_of_the_definition, {{2}}) {
  quantised(at, Quantise::e4m3_power_of_two);
}

// Sets every element of a token.
void set_row(Problem& p, int rank, std::int64_t token, const std::function<float(std::int64_t)>& value) {
  Input& in = p.inputs[index(rank)];
  for (std::int64_t i = 0; i < p.call.hidden; ++i)
    from_float(p.call.dtype, value(i),
               in.rows.data() + token * p.row_bytes() + i * sluice::size_of(p.call.dtype));
  if (p.call.quantise == Quantise::none)
    in.sent_rows = in.rows;
  else
    quantise(in.rows.data() + token * p.row_bytes(), p.call.dtype, p.call.hidden, p.call.quantise,
             in.sent_rows.data() + token * p.sent_row_bytes(),
             in.sent_scales.data() + token * p.sent_scale_bytes());
}

// Case 19: rows where a scale is easily zero, infinite, or one step off.
PROMISE(V4, scales_of_edge_rows_are_those_of_the_definition, {{2}}) {
  for (Quantise form : {Quantise::e4m3, Quantise::e4m3_power_of_two}) {
    Recipe recipe = base(at, Layout::packed, 19);
    recipe.call.dtype = DataType::fp32;
    recipe.call.hidden = 272;
    recipe.call.quantise = form;
    Job job(recipe);
    Problem& p = job.problem;
    const float nan = std::numeric_limits<float>::quiet_NaN(),
                infinity = std::numeric_limits<float>::infinity();
    set_row(p, 0, 0, [](std::int64_t) { return 0.0f; });
    set_row(p, 0, 1, [](std::int64_t) { return 1e-30f; });
    set_row(p, 0, 2, [&](std::int64_t i) { return i == 5 ? nan : 1.0f; });
    set_row(p, 0, 3, [&](std::int64_t i) { return i % 2 ? infinity : -infinity; });
    set_row(p, 0, 4, [](std::int64_t i) { return i % 3 ? 448.0f : -448.0f; });  // a / 448 is a power of two
    set_row(p, 0, 5, [](std::int64_t i) { return i % 3 ? 448.0001f : 3.0f; });  // one step above
    set_row(p, 0, 6, [](std::int64_t) { return std::numeric_limits<float>::max(); });
    set_row(p, 0, 7, [](std::int64_t i) { return i == 0 ? 1e-4f : -1e-39f; });
    set_row(p, 1, 0, [](std::int64_t i) { return static_cast<float>(i) - 130.5f; });  // ties
    set_row(p, 1, 1, [&](std::int64_t) { return nan; });
    run_one(at, job);
  }
}

PROMISE(V4, a_moved_row_keeps_its_nan_payloads, {{1, 2}}) {
  for (DataType type : {DataType::bf16, DataType::fp16, DataType::fp32, DataType::e4m3, DataType::e5m2}) {
    Recipe recipe = base(at, Layout::packed, 21);
    recipe.call.dtype = type;
    Job job(recipe);
    for (Input& in : job.problem.inputs) {
      for (std::size_t i = 0; i < in.rows.size(); ++i)
        in.rows[i] = static_cast<std::byte>(0x7f | (i * 37 & 0x80) | (i & 1));
      in.sent_rows = in.rows;
    }
    run_one(at, job);
  }
}

double dot(const Bytes& a, const Bytes& b, DataType type, double& size) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); i += index(sluice::size_of(type))) {
    const double product =
        static_cast<double>(to_float(type, a.data() + i)) * static_cast<double>(to_float(type, b.data() + i));
    sum += product;
    size += std::fabs(product);
  }
  return sum;
}

double sum_over_ranks(const sluice::Group& group, double mine) {
  double sum = 0;
  for (const auto& message : group.all_gather(std::as_bytes(std::span(&mine, 1)))) {
    double one = 0;
    std::memcpy(&one, message.data(), sizeof one);
    sum += one;
  }
  return sum;
}

// Case 24. <dispatch(x), y> = <x, combine(y)> over all ranks.
PROMISE(V5, dispatch_and_combine_are_adjoint, {{1, 2, 4}}) {
  for (Layout layout : layouts) {
    Recipe recipe = base(at, layout, 24);
    recipe.experts = 8;
    recipe.tokens = {32};
    recipe.call.topk = 3;
    recipe.call.dtype = DataType::fp32;
    recipe.fill = Fill::tame;
    recipe.call.zero_padding = true;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      const auto brought = bring(job.problem, self.rank);
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      const Image there = observe(job.problem, sent);
      CombineCall call = combine_call(job.problem, DataType::fp32);
      call.weights = false;
      const auto returned = give_back(comm, job, self.rank, sent, call);
      Bytes y(there.data.size());  // the rows given to combine, zero where give_back() left NaN
      for (std::size_t i = 0; i < y.size(); i += 4) {
        const float value = to_float(DataType::fp32, returned->rows.data() + i);
        from_float(DataType::fp32, std::isnan(value) ? 0.0f : value, y.data() + i);
      }
      const sluice::CombineResult home = comm.combine(returned->args);
      home.ready.wait();
      const std::size_t bytes = job.problem.inputs[index(self.rank)].rows.size();
      Bytes back(bytes);
      fetch(back.data(), home.rows.data, bytes);
      double size = 0, unused = 0;
      const double left = dot(there.data, y, DataType::fp32, size);
      const double right = dot(job.problem.inputs[index(self.rank)].rows, back, DataType::fp32, unused);
      const double difference = sum_over_ranks(self.group, left) - sum_over_ranks(self.group, right);
      EXPECT_LE(std::fabs(difference), 1e-6 * sum_over_ranks(self.group, size));
    });
  }
}

// The gradients of the weights travel as side values, one per row, to the slot that chose it.
PROMISE(V5, side_values_bring_the_gradients_of_the_weights_home, {{1, 2, 3}}) {
  for (Layout layout : layouts) {
    Recipe recipe = base(at, layout, 25);
    recipe.missing = 0.2;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      Round round;
      round.combine = combine_call(job.problem);
      round.combine.values = true;
      run_job(self, job, round);
    });
  }
}

PROMISE(V6, a_nan_stays_in_its_row, {{2, 3}}) {
  Recipe recipe = base(at, Layout::packed, 61);
  recipe.call.dtype = DataType::bf16;
  recipe.fill = Fill::tame;
  Job job(recipe);
  set_row(job.problem, 1, 2, [](std::int64_t) { return std::numeric_limits<float>::quiet_NaN(); });
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    check_dispatch(job, self.rank, sent, *brought);
    // Experts do nothing: the rows that came go home as they are.
    sluice::CombineArgs args;
    args.rows = sent.rows;
    args.route = sent.route;
    const sluice::CombineResult home = comm.combine(args);
    home.ready.wait();
    const auto rows = elements_of<std::uint16_t>(home.rows);
    for (std::int64_t t = 0; t < home.rows.shape[0]; ++t)
      for (std::int64_t i = 0; i < home.rows.shape[1]; ++i) {
        const bool nan = std::isnan(to_float(DataType::bf16, rows.data() + t * home.rows.shape[1] + i));
        EXPECT_EQ(nan, self.rank == 1 && t == 2) << "token " << t << " element " << i;
      }
  });
}

// A token that goes nowhere is full of NaN, and so is all padding that combine is given (give_back()).
PROMISE(V6, the_nan_of_a_masked_row_reaches_nobody, {{2, 4}}) {
  for (Layout layout : layouts) {
    Recipe recipe = base(at, layout, 62);
    recipe.call.counts = Counts::bounded;
    recipe.call.quantise = Quantise::e4m3;
    recipe.call.hidden = 128;
    recipe.missing = 0.6;
    recipe.call.alignment = layout == Layout::grouped ? 16 : 1;
    Job job(recipe);
    Problem& p = job.problem;
    for (int r = 0; r < p.ranks; ++r)
      for (std::int64_t t = 0; t < p.inputs[index(r)].tokens; ++t) {
        bool goes = false;
        for (int k = 0; k < p.call.topk; ++k) goes |= p.inputs[index(r)].ids[index(t * p.call.topk + k)] >= 0;
        if (!goes) set_row(p, r, t, [](std::int64_t) { return std::numeric_limits<float>::quiet_NaN(); });
      }
    run_one(at, job);
  }
}

PROMISE(V6, an_all_zero_row_has_finite_scales, {{2}}) {
  for (Quantise form : {Quantise::e4m3, Quantise::e4m3_power_of_two}) {
    Recipe recipe = base(at, Layout::grouped, 63);
    recipe.call.quantise = form;
    recipe.call.hidden = 256;
    recipe.call.zero_padding = true;
    Job job(recipe);
    for (int r = 0; r < at.ranks; ++r) set_row(job.problem, r, 1, [](std::int64_t) { return 0.0f; });
    run_one(at, job);
  }
}

}  // namespace
}  // namespace conformance
