#include <algorithm>

#include "core/agree.h"
#include "core/plan.h"
#include "engine/cpu/kernels.h"

namespace sluice::cpu {

using namespace core;

void run_kernel(const PlanArgs& args, KernelContext&) { plan_route(args); }

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
