#include <algorithm>
#include <cstring>

#include "core/agree.h"
#include "engine/cpu/kernels.h"

namespace sluice::cpu {

using namespace core;

namespace {

void clear_outputs(const PlanArgs& args) {
  const DispatchOutputs& out = args.outputs;
  const std::int64_t experts = args.topology->local_experts(args.topology->rank);
  if (out.local_ids) std::fill_n(out.local_ids, out.capacity * args.route.topk, -1);
  if (out.weights) std::fill_n(out.weights, out.weight_count, 0.0f);
  if (out.num_rows) *out.num_rows = 0;
  if (out.counts) std::fill_n(out.counts, experts, 0);
  if (out.aligned_counts) std::fill_n(out.aligned_counts, experts, 0);
  if (out.offsets) std::fill_n(out.offsets, out.offset_count, 0);
  if (out.dropped) *out.dropped = 0;
}

// The id as this library counts it: -1 for "no expert" and, unchecked, for anything out of range.
template <class Id>
class TokenIds {
 public:
  explicit TokenIds(const PlanArgs& args) : args_(args), ids_(static_cast<const Id*>(args.ids)) {}

  std::int32_t at(std::int64_t t, std::int32_t k) const {
    const auto id = static_cast<std::int64_t>(ids_[t * args_.route.topk + k]);
    if (id >= 0 && id < args_.topology->experts) return static_cast<std::int32_t>(id);
    if (id != -1) fault(IdProblem::out_of_range, t, k, id);
    return -1;
  }

  void fault(IdProblem problem, std::int64_t t, std::int32_t k, std::int64_t id) const {
    if (args_.checks && args_.report->fault.problem == IdProblem::none) {
      args_.report->fault = {problem, k, t, id, args_.topology->experts};
    }
  }

 private:
  const PlanArgs& args_;
  const Id* ids_;
};

template <class Id>
void count_ids(const PlanArgs& args) {
  const RouteTables& route = args.route;
  const Topology& topology = *args.topology;
  const TokenIds<Id> ids(args);
  std::int32_t* const per_expert = route.sent + route.ranks;
  for (std::int64_t t = 0; t < route.tokens; ++t) {
    std::int32_t* const expert_of = route.expert_of + t * route.topk;
    std::int32_t* const index = route.slot_index + t * route.topk;
    std::int32_t* const send = route.send_index + t * route.ranks;
    for (std::int32_t k = 0; k < route.topk; ++k) {
      const std::int32_t e = ids.at(t, k);
      expert_of[k] = e;
      index[k] = -1;
      if (e < 0) continue;
      if (std::find(expert_of, expert_of + k, e) != expert_of + k) {
        ids.fault(IdProblem::twice, t, k, e);
        continue;
      }
      index[k] = per_expert[e]++;
      std::int32_t& position = send[topology.owner_of(e)];
      if (position < 0) position = route.sent[topology.owner_of(e)]++;
    }
  }
}

void count_mask(const PlanArgs& args) {
  const RouteTables& route = args.route;
  for (std::int64_t t = 0; t < route.tokens; ++t) {
    for (std::int32_t r = 0; r < route.ranks; ++r) {
      if (args.rank_mask[t * route.ranks + r]) route.send_index[t * route.ranks + r] = route.sent[r]++;
    }
  }
}

}  // namespace

void run_kernel(const PlanArgs& args, KernelContext&) {
  clear_outputs(args);
  if (args.clear_only) return;
  const RouteTables& route = args.route;
  std::fill_n(route.sent, route.ranks + args.topology->experts, 0);
  std::fill_n(route.send_index, route.tokens * route.ranks, -1);
  if (args.rank_mask) return count_mask(args);
  if (args.ids_are_64_bit) return count_ids<std::int64_t>(args);
  count_ids<std::int32_t>(args);
}

void run_kernel(const PublishArgs& args, KernelContext& context) {
  ControlRecord record = args.record;
  const Topology& topology = *args.topology;
  args.report->operation = ++*args.operations;
  record.digest[Field::operation] = *args.operations;
  if (args.report->fault.problem != IdProblem::none && record.refusal == Refusal::none) {
    record.refusal = Refusal::id;
    record.fault = args.report->fault;
  }
  if (args.made_by && args.made_by->verdict.outcome != Outcome::go && record.refusal == Refusal::none) {
    record.refusal = Refusal::route;
  }
  record.sent_at_ns = context.now_ns;
  const std::size_t counts =
      sizeof(std::int32_t) * static_cast<std::size_t>(topology.ranks + (args.expert_counts ? topology.experts : 0));
  for (std::int32_t r = 0; r < topology.ranks; ++r) {
    std::byte* const to = args.addresses->base[r] + args.page.record_offset(args.channel, topology.rank);
    auto* const at = reinterpret_cast<ControlRecord*>(to);
    *at = record;
    if (args.sent) std::memcpy(counts_per_rank(at), args.sent, counts);
  }
}

void run_kernel(const AgreeArgs& args, KernelContext& context) { agree(args, context.own_page); }

void run_kernel(const SealArgs&, KernelContext&) {}

}  // namespace sluice::cpu
