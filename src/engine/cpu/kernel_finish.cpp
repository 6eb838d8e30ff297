#include <algorithm>
#include <cstring>

#include "core/numbers.h"
#include "core/routing.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/rows.h"

namespace sluice::cpu {

using namespace core;

namespace {

void clear_outputs(const FinishArgs& args) {
  const DispatchOutputs& out = args.outputs;
  const std::int64_t experts = args.topology->local_experts(args.topology->rank);
  if (out.local_ids) std::fill_n(out.local_ids, out.capacity * args.route.topk, -1);
  if (out.weights) std::fill_n(out.weights, out.weight_count, 0.0f);
  *out.num_rows = 0;
  std::fill_n(out.counts, experts, 0);
  std::fill_n(out.aligned_counts, experts, 0);
  std::fill_n(out.offsets, out.offset_count, 0);
  *out.dropped = 0;
}

class Finish {
 public:
  explicit Finish(const FinishArgs& args)
      : args_(args), route_(args.route), me_(args.topology->rank), first_(args.topology->first_expert[me_]),
        experts_(route_.topk > 0 ? args.topology->local_experts(me_) : 0), packed_(packed_rows_here(route_, me_)) {}

  void run(KernelContext& context) {
    counts();
    if (route_.layout == Layout::packed) packed_choices();
    else if (args_.makes_route) rows_of_slots(context.scratch);
    if (route_.layout != Layout::packed && args_.arrived_weights && args_.outputs.weights) row_weights();
    context.team.parallel(packed_, context.workers_for(packed_ * args_.row_bytes), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) place_rows(n);
    });
    pad();
    statistics();
  }

 private:
  ExpertRows rows_of(int local) const { return expert_rows(route_, *args_.topology, me_, first_ + local); }

  void counts() {
    const DispatchOutputs& out = args_.outputs;
    const Report& report = *args_.report;
    *out.num_rows = report.rows;
    *out.dropped = report.dropped;
    if (route_.layout == Layout::packed) {
      for (int s = 0; s <= route_.ranks; ++s) out.offsets[s] = std::min(route_.source_start[s], packed_);
      for (std::int64_t n = 0; route_.topk > 0 && n < packed_; ++n) {
        const std::int32_t* const ids = route_.local_ids + n * route_.topk;
        for (int k = 0; k < route_.topk; ++k) {
          if (ids[k] >= 0 && first_slot(ids, k) == k) ++out.counts[ids[k]];
        }
      }
      std::copy_n(out.counts, experts_, out.aligned_counts);
      return;
    }
    for (int e = 0; e < experts_; ++e) {
      const ExpertRows rows = rows_of(e);
      out.counts[e] = static_cast<std::int32_t>(rows.count);
      out.aligned_counts[e] = static_cast<std::int32_t>(rows.aligned);
      out.offsets[e] = rows.start;
    }
    out.offsets[experts_] = route_.layout == Layout::padded ? end_of_rows(route_, *args_.topology, me_) : report.rows;
  }

  void packed_choices() {
    const auto slots = static_cast<std::size_t>(packed_ * route_.topk);
    if (args_.outputs.local_ids) std::memcpy(args_.outputs.local_ids, route_.local_ids, slots * sizeof(std::int32_t));
    if (args_.arrived_weights && args_.outputs.weights) {
      std::memcpy(args_.outputs.weights, args_.arrived_weights, slots * sizeof(float));
    }
  }

  // Packed rows come in (source rank, token) order, so walking them gives every expert's rows in order.
  void rows_of_slots(std::byte* scratch) {
    auto* const next = reinterpret_cast<std::int64_t*>(scratch);
    for (int e = 0; e < experts_; ++e) next[e] = route_.expert_start[first_ + e];
    for (std::int64_t n = 0; n < packed_; ++n) {
      const std::int32_t* const ids = route_.local_ids + n * route_.topk;
      std::int64_t* const rows = route_.row_of + n * route_.topk;
      for (int k = 0; k < route_.topk; ++k) {
        rows[k] = -1;
        if (ids[k] < 0 || first_slot(ids, k) != k) continue;
        const std::int64_t row = next[ids[k]]++;
        if (row_fits(route_, me_, first_ + ids[k], row)) rows[k] = row;
      }
    }
  }

  // A token that names an expert twice has one row there; its weights are added in slot order. One alone keeps its bits.
  void row_weights() {
    for (std::int64_t n = 0; n < packed_; ++n) {
      for (int k = 0; k < route_.topk; ++k) {
        const std::int64_t row = row_here(route_, n, k);
        if (row < 0) continue;
        float& weight = args_.outputs.weights[row];
        const float arrived = args_.arrived_weights[n * route_.topk + k];
        weight = route_.row_of[n * route_.topk + k] >= 0 ? arrived : numbers::canonical(numbers::sum(weight, arrived));
      }
    }
  }

  std::byte* row_at(std::int64_t row) const {
    return args_.rows + row_offset(route_, me_, row, args_.row_stride, args_.expert_stride);
  }

  std::byte* scale_at(std::int64_t row, std::int64_t s) const {
    return args_.scales + args_.scale_shape.offset(row, s, args_.scale_ld);
  }

  void place_row(std::int64_t to, std::int64_t landed) const {
    const std::byte* const from = args_.landed + landed * args_.row_bytes;
    if (row_at(to) != from) copy_row(row_at(to), from, static_cast<std::size_t>(args_.row_bytes));
    if (to == landed) return;
    for (std::int64_t s = 0; s < args_.scale_shape.count; ++s) {
      std::memcpy(scale_at(to, s), scale_at(landed, s), static_cast<std::size_t>(args_.scale_shape.size));
    }
  }

  // The row landed once, at its first slot; the other slots are filled from there.
  void place_rows(std::int64_t n) const {
    if (route_.layout == Layout::packed) return place_row(n, n);
    const std::int64_t* const rows = route_.row_of + n * route_.topk;
    std::int64_t landed = -1;
    for (int k = 0; k < route_.topk; ++k) {
      if (rows[k] < 0) continue;
      if (landed < 0) landed = rows[k];
      place_row(rows[k], landed);
    }
  }

  void pad_range(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      if (args_.zero_padding) std::memset(row_at(row), 0, static_cast<std::size_t>(args_.row_bytes));
      for (std::int64_t s = 0; s < args_.scale_shape.count; ++s) {
        std::memset(scale_at(row, s), 0, static_cast<std::size_t>(args_.scale_shape.size));
      }
    }
  }

  // Scales of padding are finite always: a maximum over the whole tensor must not meet old bytes.
  void pad() const {
    if (!args_.zero_padding && args_.scale_shape.count == 0) return;
    std::int64_t end = args_.exact ? args_.report->rows : args_.outputs.capacity;
    if (route_.layout == Layout::padded) end = end_of_rows(route_, *args_.topology, me_);
    if (route_.layout == Layout::packed) return pad_range(packed_, end);
    for (int e = 0; e < experts_; ++e) {
      const ExpertRows rows = rows_of(e);
      pad_range(rows.start + rows.count, e + 1 < experts_ ? std::min(rows_of(e + 1).start, end) : end);
    }
    if (experts_ == 0) pad_range(0, end);
  }

  void statistics() const {
    for (int e = 0; args_.expert_load && e < experts_; ++e) args_.expert_load[e] += args_.outputs.counts[e];
    for (int r = 0; args_.waited && r < route_.ranks; ++r) args_.waited[r] += args_.placement.lateness_ns[r];
  }

  const FinishArgs& args_;
  const RouteTables& route_;
  int me_;
  std::int32_t first_;
  std::int32_t experts_;
  std::int64_t packed_;
};

}  // namespace

void run_kernel(const FinishArgs& args, KernelContext& context) {
  clear_outputs(args);
  if (!context.well || args.report->verdict.outcome != Outcome::go) return;
  Finish(args).run(context);
}

}  // namespace sluice::cpu
