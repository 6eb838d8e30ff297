#include "drive.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace conformance {
namespace {

using sluice::ConstTensorView;
using sluice::TensorView;

constexpr std::byte canary{0xa5};
constexpr std::int64_t canary_bytes = 256;

void bring_rows(const Problem& p, const Input& in, const Manner& manner, Brought& out) {
  const std::int64_t size = sluice::size_of(p.call.dtype);
  const std::int64_t stride = p.call.hidden + (manner.strided ? 32 / size : 0);
  out.rows.assign(index(in.tokens * stride * size), canary);
  for (std::int64_t t = 0; t < in.tokens; ++t)
    std::memcpy(out.rows.data() + t * stride * size, in.rows.data() + t * p.row_bytes(),
                index(p.row_bytes()));
  out.args.rows =
      ConstTensorView(in.tokens > 0 ? out.rows.data() : nullptr, p.call.dtype, in.tokens, p.call.hidden);
  out.args.rows.strides[0] = stride;
  if (p.call.scales == 0 || p.call.quantise != Quantise::none) return;
  // Strided scales lie transposed, a few elements apart.
  const std::int64_t element = sluice::size_of(p.call.scale_type);
  const std::int64_t across = manner.strided ? 1 : p.call.scales;
  const std::int64_t down = manner.strided ? in.tokens + 3 : 1;
  out.scales.assign(index((in.tokens + 3) * p.call.scales * element), canary);
  for (std::int64_t t = 0; t < in.tokens; ++t)
    for (std::int64_t s = 0; s < p.call.scales; ++s)
      std::memcpy(out.scales.data() + (t * across + s * down) * element,
                  in.scales.data() + (t * p.call.scales + s) * element, index(element));
  out.args.scales = ConstTensorView(in.tokens > 0 ? out.scales.data() : nullptr, p.call.scale_type, in.tokens,
                                    p.call.scales);
  out.args.scales.strides = {across, down, 0};
}

void bring_routing(const Problem& p, const Input& in, Brought& out) {
  const int topk = p.call.topk;
  if (p.call.mask) {
    out.mask.assign(in.mask.begin(), in.mask.end());
    out.args.rank_mask = ConstTensorView(out.mask.data(), DataType::uint8, in.tokens, p.ranks);
    return;
  }
  out.ids64.assign(in.ids.begin(), in.ids.end());
  for (std::int64_t id : in.ids) out.ids32.push_back(static_cast<std::int32_t>(id));
  const bool wide = p.call.id_type == DataType::int64;
  const void* ids =
      wide ? static_cast<const void*>(out.ids64.data()) : static_cast<const void*>(out.ids32.data());
  out.args.expert_ids = ConstTensorView(in.tokens > 0 ? ids : nullptr, p.call.id_type, in.tokens, topk);
  if (!p.call.weights) return;
  out.weights.assign(in.weights.begin(), in.weights.end());
  out.args.weights =
      ConstTensorView(in.tokens > 0 ? out.weights.data() : nullptr, DataType::fp32, in.tokens, topk);
}

void bring_outputs(const Problem& p, int rank, const Manner& manner, Brought& out) {
  const std::int64_t local = p.local_experts(rank);
  const DataType type = p.call.quantise == Quantise::none ? p.call.dtype : DataType::e4m3;
  if (manner.own_output && p.call.capacity > 0) {
    const std::int64_t rows = p.call.capacity * (p.call.layout == Layout::padded ? local : 1);
    out.output.assign(index(rows * p.sent_row_bytes() + 2 * canary_bytes), canary);
    void* data = out.output.data() + canary_bytes;
    if (p.call.layout == Layout::padded)
      out.args.output = TensorView(data, type, local, p.call.capacity, p.call.hidden);
    else
      out.args.output = TensorView(data, type, rows, p.call.hidden);
  }
  if (manner.load) {
    out.load.assign(index(local), 5);
    out.args.expert_load = TensorView(out.load.data(), DataType::int32, local);
  }
  if (manner.waited) {
    out.waited.assign(index(p.ranks), 7);
    out.args.waited = TensorView(out.waited.data(), DataType::int64, p.ranks);
  }
}

}  // namespace

std::unique_ptr<Brought> bring(const Problem& p, int rank, const Manner& manner) {
  auto out = std::make_unique<Brought>();
  const Input& in = p.inputs[index(rank)];
  bring_rows(p, in, manner, *out);
  bring_routing(p, in, *out);
  bring_outputs(p, rank, manner, *out);
  sluice::DispatchArgs& args = out->args;
  args.layout = p.call.layout;
  args.counts = p.call.counts;
  args.capacity = p.call.capacity;
  args.alignment = p.call.alignment;
  args.on_overflow = p.call.on_overflow;
  args.quantise = p.call.quantise;
  args.scale_layout = p.call.scale_layout;
  args.zero_padding = p.call.zero_padding;
  args.checks = p.call.checks;
  args.channel = p.call.channel;
  args.num_sms = manner.num_sms;
  return out;
}

// Row by row, whatever the strides; the last dimension is the inside of a row.
Bytes tight(const TensorView& view) {
  const std::int64_t size = sluice::size_of(view.dtype);
  Bytes out(index(view.elements() * size));
  if (out.empty()) return out;
  std::int64_t last_element = 0;
  for (int d = 0; d < view.dims; ++d) last_element += (view.shape[index(d)] - 1) * view.strides[index(d)];
  Bytes all(index((last_element + 1) * size));  // gaps included
  fetch(all.data(), view.data, all.size());
  const std::byte* data = all.data();
  const int last = view.dims - 1;
  const std::int64_t inner = view.shape[index(last)];
  const std::int64_t rows = view.elements() / inner;
  const std::int64_t middle = view.dims == 3 ? view.shape[1] : 1;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int64_t start = view.dims == 1 ? 0 : r * view.strides[0];
    if (view.dims == 3) start = r / middle * view.strides[0] + r % middle * view.strides[1];
    for (std::int64_t i = 0; i < inner; ++i) {
      const std::int64_t stride = view.strides[index(last)];
      const std::int64_t run = stride == 1 ? inner : 1;
      std::memcpy(out.data() + (r * inner + i) * size, data + (start + i * stride) * size, index(run * size));
      i += run - 1;
    }
  }
  return out;
}

namespace {

std::vector<std::int64_t> integers_of(const TensorView& view) {
  std::vector<std::int64_t> out;
  if (view.dtype == DataType::int64) return elements_of<std::int64_t>(view);
  for (std::int32_t x : elements_of<std::int32_t>(view)) out.push_back(x);
  return out;
}

std::int64_t only(const TensorView& view) {
  const std::vector<std::int64_t> list = integers_of(view);
  return list.size() == 1 ? list[0] : -999;
}

}  // namespace

Image observe(const Problem& p, const sluice::DispatchResult& result) {
  result.ready.wait();
  Image image;
  const bool padded = p.call.layout == Layout::padded;
  image.rows = result.rows.shape[0] * (padded ? result.rows.shape[1] : 1);
  image.per_expert_rows = padded ? result.rows.shape[1] : 0;
  image.row_bytes = result.rows.shape[padded ? 2 : 1] * sluice::size_of(result.rows.dtype);
  image.data = tight(result.rows);
  if (result.scales.given()) {
    image.scale_bytes = result.scales.shape[padded ? 2 : 1] * sluice::size_of(result.scales.dtype);
    image.scales = tight(result.scales);
  }
  image.local_ids = elements_of<std::int32_t>(result.local_ids);
  image.weights = elements_of<float>(result.weights);
  image.num_rows = only(result.num_rows);
  image.dropped = result.dropped.given() ? only(result.dropped) : 0;
  image.counts = integers_of(result.counts);
  image.aligned_counts = integers_of(result.aligned_counts);
  image.offsets = integers_of(result.offsets);
  image.host_rows = result.host.rows;
  image.host_per_expert = result.host.per_expert;
  image.host_per_source = result.host.per_source;
  return image;
}

namespace {

void check_shapes(const Problem& p, const Arrivals& arrivals, const Image& expected,
                  const sluice::DispatchResult& result) {
  const bool padded = p.call.layout == Layout::padded;
  const std::int64_t rows = result.rows.shape[padded ? 1 : 0];
  std::int64_t need = expected.num_rows;
  if (padded) {
    need = 0;
    for (std::int64_t n : arrivals.per_expert) need = std::max(need, n);
  }
  if (p.call.counts == Counts::exact && !padded)
    EXPECT_EQ(rows, need);
  else if (p.call.capacity > 0)
    EXPECT_EQ(rows, p.call.capacity);
  else
    EXPECT_GE(rows, need);
  const DataType type = p.call.quantise == Quantise::none ? p.call.dtype : DataType::e4m3;
  EXPECT_EQ(result.rows.dtype, type);
  if (p.call.scale_layout == ScaleLayout::column && result.scales.given() && result.scales.elements() > 0) {
    const std::int64_t per_16 = 16 / sluice::size_of(result.scales.dtype);
    const std::int64_t all_rows = rows * (padded ? result.rows.shape[0] : 1);
    const std::int64_t ld = (all_rows + per_16 - 1) / per_16 * per_16;
    EXPECT_EQ(result.scales.strides[padded ? 1 : 0], 1);
    // With exact counts the place of the scales is fixed before N is known: at least so many then.
    const std::int64_t got = result.scales.strides[padded ? 2 : 1];
    EXPECT_EQ(got % per_16, 0) << "leading dimension of column scales";
    if (p.call.counts == Counts::exact && !padded)
      EXPECT_GE(got, ld);
    else
      EXPECT_EQ(got, ld) << "leading dimension of column scales";
  }
}

void check_side_outputs(const Arrivals& arrivals, const Brought& brought) {
  for (std::size_t e = 0; e < brought.load.size(); ++e)
    EXPECT_EQ(brought.load[e], 5 + arrivals.per_expert[e]) << "expert_load of local expert " << e;
  for (std::int64_t w : brought.waited) EXPECT_GE(w, 7);
  if (brought.output.empty()) return;
  for (std::int64_t i = 0; i < canary_bytes; ++i) {
    ASSERT_EQ(brought.output[index(i)], canary) << "before the output";
    ASSERT_EQ(brought.output[brought.output.size() - 1 - index(i)], canary) << "past the output";
  }
}

}  // namespace

void check_dispatch(const Job& job, int rank, const sluice::DispatchResult& result, const Brought& brought) {
  const Problem& p = job.problem;
  const Arrivals& arrivals = job.arrivals[index(rank)];
  const Image got = observe(p, result);
  const Image expected = expected_image(p, arrivals, rank, got.rows, got.per_expert_rows);
  for (const std::string& finding : compare(p, expected, got))
    ADD_FAILURE() << finding << "\n  " << describe(p);
  check_shapes(p, arrivals, expected, result);
  check_side_outputs(arrivals, brought);
  if (brought.args.output.given()) {
    EXPECT_EQ(result.rows.data, brought.args.output.data);
  }
}

CombineCall combine_call(const Problem& problem, DataType type) {
  CombineCall call;
  call.type = type;
  call.hidden = (problem.call.hidden + 7) / 8 * 8;  // whole 16 bytes in every type
  call.seed = problem.seed + 17;
  return call;
}

namespace {

TensorView like_rows(const sluice::DispatchResult& sent, void* data, const CombineCall& call) {
  if (sent.rows.dims == 3)
    return TensorView(data, call.type, sent.rows.shape[0], sent.rows.shape[1], call.hidden);
  return TensorView(data, call.type, sent.rows.shape[0], call.hidden);
}

// Where the rows of a combine lie: the caller's memory, the arena, or the dispatch result itself.
TensorView input_memory(sluice::Communicator& comm, const sluice::DispatchResult& sent,
                        const CombineCall& call, Memory memory, Returned& out) {
  const std::int64_t rows = sent.rows.shape[0] * (sent.rows.dims == 3 ? sent.rows.shape[1] : 1);
  const std::int64_t row_bytes = call.hidden * sluice::size_of(call.type);
  const bool fits = sent.rows.dtype == call.type && sent.rows.shape[index(sent.rows.dims - 1)] == call.hidden;
  if (memory == Memory::in_place && fits) return sent.rows;
  if (memory == Memory::allocated) {
    const TensorView block = comm.allocate(rows, row_bytes, call.type);
    TensorView view = like_rows(sent, block.data, call);
    view.owner = block.owner;
    return view;
  }
  out.rows.resize(index(rows * row_bytes));
  return like_rows(sent, out.rows.data(), call);
}

void fill_inputs(const Job& job, int rank, const sluice::DispatchResult& sent, const CombineCall& call,
                 TensorView& rows, Returned& out) {
  const Problem& p = job.problem;
  const bool packed = p.call.layout == Layout::packed;
  const std::int64_t total = rows.shape[0] * (rows.dims == 3 ? rows.shape[1] : 1);
  const std::int64_t row_bytes = call.hidden * sluice::size_of(call.type);
  const int per_row = packed ? p.call.topk : 1;
  Bytes filled(index(total * row_bytes), std::byte{0xff});  // a NaN in every type
  const float nan = std::numeric_limits<float>::quiet_NaN();
  out.weights.assign(index(total), nan);
  out.values.assign(index(total * per_row), nan);
  for (const Arrival& a : job.arrivals[index(rank)].list) {
    if (a.dropped) continue;
    const std::int64_t row = a.row + (rows.dims == 3 ? a.local_expert * rows.shape[1] : 0);
    combine_row(call, rank, a, filled.data() + row * row_bytes);
    out.weights[index(row)] = combine_weight(call, rank, a);
    for (int k = 0; k < per_row; ++k)
      out.values[index(row * per_row + k)] = combine_value(call, rank, a, packed ? k : 0);
  }
  store(rows.data, filled.data(), filled.size());
  const bool three = sent.rows.dims == 3;
  if (call.weights)
    out.args.weights = three
                           ? ConstTensorView(out.weights.data(), DataType::fp32, rows.shape[0], rows.shape[1])
                           : ConstTensorView(out.weights.data(), DataType::fp32, total);
  if (!call.values) return;
  if (packed)
    out.args.values = ConstTensorView(out.values.data(), DataType::fp32, total, p.call.topk);
  else
    out.args.values = three ? ConstTensorView(out.values.data(), DataType::fp32, rows.shape[0], rows.shape[1])
                            : ConstTensorView(out.values.data(), DataType::fp32, total);
}

}  // namespace

std::unique_ptr<Returned> give_back(sluice::Communicator& comm, const Job& job, int rank,
                                    const sluice::DispatchResult& sent, const CombineCall& call,
                                    Memory memory, bool own_output) {
  auto out = std::make_unique<Returned>();
  TensorView rows = input_memory(comm, sent, call, memory, *out);
  fill_inputs(job, rank, sent, call, rows, *out);
  out->args.rows = rows;
  out->args.route = sent.route;
  out->args.single_rounding = call.single_rounding;
  out->args.channel = job.problem.call.channel;
  const std::int64_t tokens = job.problem.inputs[index(rank)].tokens;
  const std::int64_t row_bytes = call.hidden * sluice::size_of(call.type);
  for (int b = 0; b < call.biases; ++b) {
    out->bias[b].resize(index(tokens * row_bytes));
    for (std::int64_t t = 0; t < tokens; ++t) bias_row(call, rank, t, b, out->bias[b].data() + t * row_bytes);
    out->args.bias[b] = ConstTensorView(out->bias[b].data(), call.type, tokens, call.hidden);
  }
  if (own_output) {
    out->output.assign(index(tokens * row_bytes), canary);
    out->args.output = TensorView(out->output.data(), call.type, tokens, call.hidden);
  }
  return out;
}

void check_combine(const Job& job, int rank, const CombineCall& call, const sluice::CombineResult& result) {
  result.ready.wait();
  const Combined expected = expected_combine(job.problem, job.arrivals, call, rank);
  for (const std::string& finding :
       compare(expected, call, tight(result.rows), elements_of<float>(result.values)))
    ADD_FAILURE() << "combine: " << finding << "\n  " << describe(job.problem) << "; combine "
                  << sluice::name_of(call.type) << (call.weights ? ", weights" : "")
                  << (call.values ? ", values" : "") << ", biases " << call.biases
                  << (call.single_rounding ? ", single rounding" : "");
}

void round_trip(sluice::Communicator& comm, const Job& job, int rank, const Round& round) {
  const auto brought = bring(job.problem, rank, round.manner);
  const sluice::DispatchResult sent = comm.dispatch(brought->args);
  check_dispatch(job, rank, sent, *brought);
  if (!round.combine_too) return;
  const auto returned =
      give_back(comm, job, rank, sent, round.combine, round.memory, round.manner.own_output);
  if (round.manner.waited) {
    returned->waited.assign(index(job.problem.ranks), 0);
    returned->args.waited = TensorView(returned->waited.data(), DataType::int64, job.problem.ranks);
  }
  returned->args.num_sms = round.manner.num_sms;
  const sluice::CombineResult home = comm.combine(returned->args);
  check_combine(job, rank, round.combine, home);
  home.inputs_free.wait();
}

Half first_half(sluice::Communicator& comm, const Job& job, int rank) {
  Half half;
  half.brought = bring(job.problem, rank);
  half.sent = comm.dispatch(half.brought->args);
  check_dispatch(job, rank, half.sent, *half.brought);
  half.call = combine_call(job.problem);
  half.returned = give_back(comm, job, rank, half.sent, half.call);
  return half;
}

void run_job(Rank& self, const Job& job, const Round& round) {
  sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
  round_trip(comm, job, self.rank, round);
}

}  // namespace conformance
