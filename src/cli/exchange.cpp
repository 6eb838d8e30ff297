#include "cli/exchange.h"

#include "cli/bench_rows.h"
#include "cli/engine_views.h"

namespace sluice::cli {

Exchange::Exchange(const BenchCase& bench, int rank)
    : bench_(bench),
      rank_(rank),
      tokens_(bench.decisions[rank].tokens()),
      rows_(static_cast<std::size_t>(tokens_ * bench.flags.shape.hidden * size_of(bench.flags.shape.dtype))) {
  const std::int64_t hidden = bench.flags.shape.hidden;
  const std::int64_t bytes = hidden * size_of(bench.flags.shape.dtype);
  for (std::int64_t t = 0; t < tokens_; ++t) {
    fill_row(rows_.data() + t * bytes, bench.flags.shape.dtype, hidden, sent_key(bench, rank, t));
    for (std::int64_t g = 0; bench.sends_scales() && g < bench.scale_groups(); ++g)
      scales_.push_back(sent_scale(t, g));
  }
}

DispatchArgs Exchange::dispatch_args() const {
  const ShapeFlags& shape = bench_.flags.shape;
  const Decisions& mine = bench_.decisions[rank_];
  DispatchArgs args;
  args.rows = ConstTensorView(rows_.data(), shape.dtype, tokens_, shape.hidden);
  if (bench_.sends_scales())
    args.scales = ConstTensorView(scales_.data(), DataType::fp32, tokens_, bench_.scale_groups());
  args.expert_ids = ConstTensorView(mine.ids.data(), DataType::int32, tokens_, bench_.topk);
  args.weights = ConstTensorView(mine.weights.data(), DataType::fp32, tokens_, bench_.topk);
  args.layout = shape.layout;
  args.counts = shape.counts;
  args.capacity = shape.capacity;
  args.alignment = shape.alignment;
  args.quantise = bench_.flags.quantise ? Quantise::e4m3 : Quantise::none;
  args.num_sms = bench_.flags.num_sms;
  return args;
}

CombineArgs Exchange::combine_args(Communicator& comm, const DispatchResult& sent) const {
  const std::int64_t hidden = bench_.flags.shape.hidden;
  const DataType type = bench_.combine_type();
  CombineArgs args;
  args.route = sent.route;
  args.num_sms = bench_.flags.num_sms;
  if (bench_.flags.shape.layout != Layout::packed) args.weights = sent.weights;
  const std::int64_t count = sent.rows.elements() / hidden;
  TensorView rows = sent.rows;
  if (sent.rows.dtype != type) {
    const TensorView fresh = count > 0 ? comm.allocate(count, hidden * size_of(type), type) : TensorView();
    rows.data = fresh.data;
    rows.owner = fresh.owner;
    rows.dtype = type;
  }
  const TensorView host = on_host(comm, rows);
  fill_home_rows(bench_, arrivals(bench_, rank_, sent.rows.shape[1]), host);
  put_back(comm, host, rows);
  args.rows = rows;
  return args;
}

}  // namespace sluice::cli
