// Routing arithmetic, for host and device: which row of which rank a token goes to. No atomics decide a
// position, so the same inputs give the same bytes on every engine.
#pragma once

#include <cstdint>

#include "core/tables.h"

namespace sluice::core {

// The first slot of a token that names the same expert as slot k: k itself, unless the expert stands there
// twice. `ids` are those of the token.
template <class Id>
SLUICE_HD std::int32_t first_slot(const Id* ids, std::int32_t k) {
  std::int32_t first = 0;
  while (ids[first] != ids[k]) ++first;
  return first;
}

// The local expert of slot k at rank r; -1: none, or not there.
SLUICE_HD inline std::int32_t local_choice(const RouteTables& route, const Topology& topology, std::int64_t t,
                                           std::int32_t k, std::int32_t r) {
  const std::int32_t expert = route.expert_of[t * route.topk + k];
  const std::int32_t first = topology.first_expert[r];
  return expert >= first && expert < topology.first_expert[r + 1] ? expert - first : -1;
}

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
    if (local_choice(route, topology, t, k, r) < 0) continue;
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

// Row here of slot k of packed row n, in grouped and padded layout. A slot that names its expert again has
// the row of the first. -1: no expert here, or dropped.
SLUICE_HD inline std::int64_t row_here(const RouteTables& route, std::int64_t n, std::int32_t k) {
  const std::int32_t* const ids = route.local_ids + n * route.topk;
  return ids[k] < 0 ? -1 : route.row_of[n * route.topk + first_slot(ids, k)];
}

// The slots of packed row n that have a row of their own here, ascending by expert: the order in which
// they are summed. Returns how many; `slots` has room for K.
SLUICE_HD inline std::int32_t slots_in_order(const RouteTables& route, std::int64_t n, std::int32_t* slots) {
  const std::int32_t* const ids = route.local_ids + n * route.topk;
  std::int32_t count = 0;
  for (std::int32_t k = 0; k < route.topk; ++k) {
    if (route.row_of[n * route.topk + k] < 0) continue;
    std::int32_t at = count++;
    for (; at > 0 && ids[slots[at - 1]] > ids[k]; --at) slots[at] = slots[at - 1];
    slots[at] = k;
  }
  return count;
}

// Rows of expert e that its owner holds: all but the dropped.
SLUICE_HD inline std::int64_t kept_rows(const RouteTables& route, std::int32_t owner, std::int32_t e) {
  const std::int64_t room =
      route.layout == Layout::padded ? route.limit[owner] : route.limit[owner] - route.expert_start[e];
  const std::int64_t total = route.expert_total[e];
  return room < 0 ? 0 : (total < room ? total : room);
}

// Rows that rank r needs room for, padding between experts included (padded: of its fullest expert,
// named in `expert`).
SLUICE_HD inline std::int64_t rows_needed(const RouteTables& route, const Topology& topology, int r,
                                          std::int64_t* expert) {
  *expert = -1;
  if (route.layout == Layout::packed) return route.packed_total[r];
  const std::int32_t begin = topology.first_expert[r], end = topology.first_expert[r + 1];
  if (route.layout == Layout::grouped) {
    return begin == end ? 0 : route.expert_start[end - 1] + align_up(route.expert_total[end - 1], route.alignment);
  }
  std::int64_t need = 0;
  SLUICE_ROLLED
  for (std::int32_t e = begin; e < end; ++e) {
    if (route.expert_total[e] <= need) continue;
    need = route.expert_total[e];
    *expert = e;
  }
  return need;
}

// The same without what was dropped when the route was made: what a later operation on it needs.
SLUICE_HD inline std::int64_t rows_kept(const RouteTables& route, const Topology& topology, int r) {
  std::int64_t expert = -1;
  const std::int64_t need = rows_needed(route, topology, r, &expert);
  return need < route.limit[r] ? need : route.limit[r];
}

// One past the last grouped or padded row that rank r can hold.
SLUICE_HD inline std::int64_t end_of_rows(const RouteTables& route, const Topology& topology, int r) {
  return route.layout == Layout::padded ? route.limit[r] * topology.local_experts(r) : route.limit[r];
}

// Where the rows of one expert lie at its owner, in grouped and padded layout.
struct ExpertRows {
  std::int64_t start = 0;    // its offset
  std::int64_t count = 0;    // rows that are there
  std::int64_t aligned = 0;  // with the padding behind them
};

SLUICE_HD inline ExpertRows expert_rows(const RouteTables& route, const Topology& topology, int owner, std::int32_t e) {
  const std::int64_t end = end_of_rows(route, topology, owner);
  ExpertRows rows;
  rows.start = route.expert_start[e] < end ? route.expert_start[e] : end;
  rows.count = kept_rows(route, owner, e);
  rows.aligned = route.layout == Layout::padded ? rows.count : align_up(rows.count, route.alignment);
  if (rows.aligned > end - rows.start) rows.aligned = end - rows.start;
  return rows;
}

}  // namespace sluice::core
