#include <algorithm>

#include "core/agree.h"
#include "core/plan.h"
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

}  // namespace

void run_kernel(const PlanArgs& args, KernelContext&) {
  clear_outputs(args);
  if (args.makes_route) plan_route(args);
}

void run_kernel(const PublishArgs& args, KernelContext& context) {
  args.report->operation = context.operation;
  ControlRecord record = args.record;
  complete_record(args, context.operation, context.now_ns, record);
  for (std::int32_t r = 0; r < args.topology->ranks; ++r) {
    ControlRecord& at = record_at(args, r);
    at = record;
    std::copy_n(args.sent, counts_to_send(args), counts_per_rank(&at));
  }
}

void run_kernel(const AgreeArgs& args, KernelContext&) { agree(args); }

void run_kernel(const SealArgs&, KernelContext&) {}

}  // namespace sluice::cpu
