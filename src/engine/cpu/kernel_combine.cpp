#include <array>
#include <functional>

#include "core/routing.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/rows.h"

namespace sluice::cpu {

using namespace core;

namespace {

// Outputs below this stay in the caches for whatever the caller does next.
constexpr std::int64_t stream_from_bytes = 1 << 20;

// Sums the grouped or padded rows of one packed row, in ascending expert order.
class LocalSum {
 public:
  explicit LocalSum(const GatherArgs& args) : args_(args), route_(args.route) {}

  void packed_row(std::int64_t n) {
    std::array<std::int32_t, limits::topk> slots;
    std::array<const void*, limits::topk> rows;
    std::array<float, limits::topk> weights;
    const std::int32_t count = slots_in_order(route_, n, slots.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const std::int64_t row = route_.row_of[n * route_.topk + slots[i]];
      rows[i] = row_at(row);
      if (args_.weights) weights[i] = args_.weights[row];
    }
    SumRows sum;
    sum.out = args_.rows_out + n * args_.elements * size_of(args_.sum_type);
    sum.out_type = args_.sum_type;
    sum.rows = rows.data();
    sum.in_type = args_.dtype;
    sum.weights = args_.weights ? weights.data() : nullptr;
    sum.count = count;
    sum.n = args_.elements;
    sum_rows(sum);
  }

 private:
  const std::byte* row_at(std::int64_t row) const {
    return args_.rows + row_offset(route_, args_.topology->rank, row, args_.row_stride, args_.expert_stride);
  }

  const GatherArgs& args_;
  const RouteTables& route_;
};

void gather_values(const GatherArgs& args, std::int64_t n) {
  const RouteTables& route = args.route;
  const std::int32_t* const ids = route.local_ids + n * route.topk;
  float* const out = args.values_out + n * route.topk;
  for (int k = 0; k < route.topk; ++k) {
    out[k] = 0.0f;
    if (ids[k] < 0) continue;
    if (route.layout == Layout::packed) {
      out[k] = args.values[n * route.topk + k];
      continue;
    }
    const std::int64_t row = row_here(route, n, k);
    if (row >= 0) out[k] = args.values[row];
  }
}

// Sums one token of this rank from its rows at the peers, in ascending rank order.
class TokenSum {
 public:
  TokenSum(const ReduceArgs& args, bool stream) : args_(args), route_(args.route), stream_(stream) {}

  void token(std::int64_t t) {
    std::array<const void*, limits::ranks_per_node> rows;
    std::array<float, limits::ranks_per_node> weights;
    int count = 0;
    for (std::int32_t r = 0; r < route_.ranks; ++r) {
      const std::int64_t row = summed_row(route_, t, r);
      if (row < 0 || landing_row(route_, *args_.topology, t, r) < 0) continue;
      const auto at = static_cast<std::size_t>(count++);
      rows[at] = address_of(*args_.addresses, args_.placement.rows[r]) + row * args_.placement.row_stride[r];
      if (args_.weighted) weights[at] = peer_floats(args_.placement.weights[r])[row];
    }
    SumRows sum;
    sum.out = args_.out + t * args_.out_stride;
    sum.out_type = args_.out_type;
    sum.stream = stream_;
    sum.rows = rows.data();
    sum.in_type = args_.in_type;
    sum.weights = args_.weighted ? weights.data() : nullptr;
    sum.count = count;
    for (int i = 0; i < 2; ++i) sum.bias[i] = args_.bias[i] ? args_.bias[i] + t * args_.bias_stride[i] : nullptr;
    sum.n = args_.elements;
    sum_rows(sum);
    if (args_.values) values(t);
  }

 private:
  const float* peer_floats(const Place& place) const {
    return reinterpret_cast<const float*>(address_of(*args_.addresses, place));
  }

  void values(std::int64_t t) const {
    for (int k = 0; k < route_.topk; ++k) {
      const std::int64_t slot = t * route_.topk + k;
      const std::int32_t e = route_.expert_of[slot];
      const std::int32_t r = e < 0 ? -1 : args_.topology->owner_of(e);
      const std::int64_t row = e < 0 ? -1 : summed_row(route_, t, r);
      args_.values[slot] = row < 0 ? 0.0f : peer_floats(args_.placement.values[r])[row * route_.topk + k];
    }
  }

  const ReduceArgs& args_;
  const RouteTables& route_;
  bool stream_;
};

}  // namespace

void run_kernel(const GatherArgs& args, KernelContext& context) {
  if (*args.route.outcome != Outcome::go) return;
  const RouteTables& route = args.route;
  if (rows_kept(route, *args.topology, args.topology->rank) > args.rows_given) return;
  const std::int64_t rows = packed_rows_here(route, args.topology->rank), bytes = args.elements * size_of(args.dtype);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    LocalSum local(args);
    const auto row_bytes = static_cast<std::size_t>(bytes);
    for (std::int64_t n = begin; n < end; ++n) {
      if (args.rows_out && route.layout != Layout::packed) local.packed_row(n);
      if (args.rows_out && route.layout == Layout::packed) {
        copy_row(args.rows_out + n * static_cast<std::int64_t>(row_bytes), args.rows + n * args.row_stride, row_bytes);
      }
      if (args.weights_out) args.weights_out[n] = args.weights[n];
      if (args.values_out) gather_values(args, n);
    }
  };
  context.team.parallel(rows, context.workers_for(rows * bytes), std::ref(part));  // a copy would be on the heap
}

void run_kernel(const ReduceArgs& args, KernelContext& context) {
  if (args.report->verdict.outcome != Outcome::go) return;
  const std::int64_t bytes = args.route.tokens * args.elements * size_of(args.out_type);
  const bool stream = bytes >= stream_from_bytes;
  context.team.parallel(args.route.tokens, context.workers_for(bytes), [&](std::int64_t begin, std::int64_t end) {
    TokenSum sum(args, stream);
    for (std::int64_t t = begin; t < end; ++t) sum.token(t);
    if (stream) stream_fence();
  });
  for (int r = 0; args.waited && r < args.route.ranks; ++r) args.waited[r] += args.placement.lateness_ns[r];
}

}  // namespace sluice::cpu
