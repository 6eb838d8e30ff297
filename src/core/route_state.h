// What stands behind a Route handle.
#pragma once

#include <cstdint>
#include <memory>

#include "core/memory.h"
#include "core/report.h"
#include "core/slices.h"
#include "core/tables.h"

namespace sluice::core {

struct RouteState {
  RouteTables tables;
  std::shared_ptr<HeldBlock> block;            // of the tables
  std::shared_ptr<engine::LaneEvent> made;     // when that dispatch has ended
  std::shared_ptr<const Report> report;        // of that dispatch
  int channel = 0;                             // on which it was made
  std::int64_t number = 0;                     // the same on all ranks; of the call, see routes_of_channel
  std::int64_t capacity = 0;                   // rows (padded: per expert) of the result here
  // The host learned the counts (Counts::exact); else -1.
  std::int64_t rows_known = -1;
  std::int64_t packed_rows_known = -1;
};

// Lays the tables out in a block; measures when `slices` has no memory. Sizes from the fields of
// `tables` that are set already.
inline void lay_out(Slices& slices, RouteTables& tables, std::int64_t experts) {
  const std::int64_t slots = tables.tokens * tables.topk, ranks = tables.ranks;
  const bool by_expert = tables.topk > 0;
  tables.outcome = slices.take<Outcome>(1);
  tables.expert_of = slices.take<std::int32_t>(slots);
  tables.send_index = slices.take<std::int32_t>(tables.tokens * ranks);
  tables.slot_index = slices.take<std::int32_t>(slots);
  tables.sent = slices.take<std::int32_t>(ranks + experts);
  tables.packed_base = slices.take<std::int64_t>(ranks);
  tables.packed_total = slices.take<std::int64_t>(ranks);
  tables.limit = slices.take<std::int64_t>(ranks);
  tables.source_start = slices.take<std::int64_t>(ranks + 1);
  tables.expert_start = slices.take<std::int64_t>(by_expert ? experts : 0);
  tables.expert_base = slices.take<std::int64_t>(by_expert ? experts : 0);
  tables.expert_total = slices.take<std::int64_t>(by_expert ? experts : 0);
  tables.local_ids = slices.take<std::int32_t>(tables.packed_limit * tables.topk);
  tables.row_of = slices.take<std::int64_t>(tables.layout == Layout::packed ? 0 : tables.packed_limit * tables.topk);
}

inline void lay_out(Slices& slices, Placement& placement, int ranks) {
  placement.rows = slices.take<Place>(ranks);
  placement.scales = slices.take<Place>(ranks);
  placement.ids = slices.take<Place>(ranks);
  placement.weights = slices.take<Place>(ranks);
  placement.values = slices.take<Place>(ranks);
  placement.row_stride = slices.take<std::int64_t>(ranks);
  placement.scale_stride = slices.take<std::int64_t>(ranks);
  placement.lateness_ns = slices.take<std::int64_t>(ranks);
}

}  // namespace sluice::core
