// Routing arithmetic, for host and device: which row of which rank a token goes to. No atomics decide a
// position, so the same inputs give the same bytes on every engine.
#pragma once

#include <cstdint>

#include "core/tables.h"

namespace sluice::core {

// Index of token t among the packed rows of rank r, ordered by (source rank, token); -1: does not go there.
SLUICE_HD inline std::int64_t packed_index(const RouteTables& route, std::int64_t t, std::int32_t r) {
  const std::int32_t mine = route.send_index[t * route.ranks + r];
  return mine < 0 ? -1 : route.packed_base[r] + mine;
}

// Whether a grouped or padded row lies within what its owner can hold.
SLUICE_HD inline bool row_fits(const RouteTables& route, std::int32_t owner, std::int32_t expert, std::int64_t row) {
  const std::int64_t position = route.layout == Layout::padded ? row - route.expert_start[expert] : row;
  return position < route.limit[owner];
}

// Bytes from the caller's first row to `row` of rank `owner`; padded rows lie [expert, position].
SLUICE_HD inline std::int64_t row_offset(const RouteTables& route, std::int32_t owner, std::int64_t row,
                                         std::int64_t row_stride, std::int64_t expert_stride) {
  if (route.layout != Layout::padded) return row * row_stride;
  const std::int64_t capacity = route.limit[owner];
  return row / capacity * expert_stride + row % capacity * row_stride;
}

// Row at `owner` of the token's slot k in grouped or padded layout; -1: no expert, the same expert as an
// earlier slot, or dropped.
SLUICE_HD inline std::int64_t slot_row(const RouteTables& route, std::int64_t t, std::int32_t k, std::int32_t owner) {
  const std::int64_t slot = t * route.topk + k;
  if (route.slot_index[slot] < 0) return -1;
  const std::int32_t expert = route.expert_of[slot];
  const std::int64_t row = route.expert_base[expert] + route.slot_index[slot];
  return row_fits(route, owner, expert, row) ? row : -1;
}

// Row at rank r to which the token's data cross the link: its packed row, or the row of its first slot
// there that is not dropped; -1: nothing crosses.
SLUICE_HD inline std::int64_t landing_row(const RouteTables& route, const Topology& topology, std::int64_t t,
                                          std::int32_t r) {
  const std::int64_t packed = packed_index(route, t, r);
  if (packed < 0) return -1;
  if (route.layout == Layout::packed) return packed < route.limit[r] ? packed : -1;
  for (std::int32_t k = 0; k < route.topk; ++k) {
    const std::int32_t expert = route.expert_of[t * route.topk + k];
    if (expert < 0 || topology.owner_of(expert) != r) continue;
    const std::int64_t row = slot_row(route, t, k, r);
    if (row >= 0) return row;
  }
  return -1;
}

// The row that holds the sum for token t at rank r when combine reads it: packed order in every layout,
// since grouped and padded rows are summed locally first. -1: nothing to read.
SLUICE_HD inline std::int64_t summed_row(const RouteTables& route, std::int64_t t, std::int32_t r) {
  const std::int64_t packed = packed_index(route, t, r);
  if (packed < 0) return -1;
  return route.layout == Layout::packed && packed >= route.limit[r] ? -1 : packed;
}

// Packed rows of this rank that exist in its memory.
SLUICE_HD inline std::int64_t packed_rows_here(const RouteTables& route, std::int32_t rank) {
  const std::int64_t total = route.packed_total[rank];
  return route.layout == Layout::packed && total > route.limit[rank] ? route.limit[rank] : total;
}

}  // namespace sluice::core
