// What plan counts, for host and device, by one thread: from expert ids or a rank mask to expert_of,
// send_index, slot_index and sent of the route. An engine that counts in parallel must find the same.
#pragma once

#include <cstdint>

#include "core/kernels.h"
#include "core/routing.h"

namespace sluice::core {

// An id as it is counted: -1 for "no expert" and, unchecked, for anything out of range.
SLUICE_HD constexpr std::int32_t expert_of_id(std::int64_t id, std::int32_t experts) {
  return id >= 0 && id < experts ? static_cast<std::int32_t>(id) : -1;
}

// The first fault in the order of rows and columns stays.
SLUICE_HD inline void note_fault(const PlanArgs& args, const IdFault& fault) {
  if (args.checks && args.report->fault.problem == IdProblem::none) args.report->fault = fault;
}

template <class Id>
SLUICE_HD void plan_ids(const PlanArgs& args) {
  const RouteTables& route = args.route;
  const std::int32_t experts = args.topology->experts;
  std::int32_t* const per_expert = route.sent + route.ranks;
  for (std::int64_t t = 0; t < route.tokens; ++t) {
    const Id* const ids = static_cast<const Id*>(args.ids) + t * route.topk;
    std::int32_t* const expert_of = route.expert_of + t * route.topk;
    std::int32_t* const index = route.slot_index + t * route.topk;
    for (std::int32_t k = 0; k < route.topk; ++k) {
      const std::int32_t e = expert_of_id(ids[k], experts);
      expert_of[k] = e;
      index[k] = -1;
      if (e < 0) {
        if (ids[k] != -1) note_fault(args, {IdProblem::out_of_range, k, t, ids[k], experts});
        continue;
      }
      if (first_slot(expert_of, k) != k) {
        note_fault(args, {IdProblem::twice, k, t, e, experts});
        continue;
      }
      index[k] = per_expert[e]++;
      const std::int32_t owner = args.topology->owner_of(e);
      std::int32_t& position = route.send_index[t * route.ranks + owner];
      if (position < 0) position = route.sent[owner]++;
    }
  }
}

SLUICE_HD inline void plan_mask(const PlanArgs& args) {
  const RouteTables& route = args.route;
  for (std::int64_t t = 0; t < route.tokens; ++t) {
    for (std::int32_t r = 0; r < route.ranks; ++r) {
      if (args.rank_mask[t * route.ranks + r]) route.send_index[t * route.ranks + r] = route.sent[r]++;
    }
  }
}

SLUICE_HD inline void plan_route(const PlanArgs& args) {
  const RouteTables& route = args.route;
  *route.outcome = Outcome::pending;
  for (std::int64_t i = 0; i < route.ranks + args.topology->experts; ++i) route.sent[i] = 0;
  for (std::int64_t i = 0; i < route.tokens * route.ranks; ++i) route.send_index[i] = -1;
  if (args.rank_mask) plan_mask(args);
  else if (args.ids_are_64_bit) plan_ids<std::int64_t>(args);
  else plan_ids<std::int32_t>(args);
}

}  // namespace sluice::core
