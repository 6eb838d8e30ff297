// The memory of a route: what plan counts, what OPEN told, and where rows lie. All pointers lie in the
// rank's own arena; the struct itself is copied into kernel arguments.
#pragma once

#include <cstdint>

#include <sluice/options.h>

#include "core/record.h"

namespace sluice::core {

// Shapes: T tokens, K choices, R ranks, E experts in all, L experts here, P packed rows that fit here.
struct RouteTables {
  Layout layout = Layout::packed;
  std::int64_t tokens = 0;         // T
  std::int32_t topk = 0;           // K; 0 for a rank mask
  std::int32_t ranks = 1;
  std::int64_t packed_limit = 0;   // P
  std::int64_t alignment = 1;

  // Of the dispatch that makes the route: pending from its plan on, then what agree decided.
  Outcome* outcome = nullptr;           // [1]

  // By plan, from the router's output alone.
  std::int32_t* expert_of = nullptr;    // [T, K] global id, -1 = none
  std::int32_t* send_index = nullptr;   // [T, R] position among my tokens for r, -1 = does not go there
  std::int32_t* slot_index = nullptr;   // [T, K] position among my tokens for that expert, -1 = none or twice
  std::int32_t* sent = nullptr;         // [R + E] C[me][r], C[me][e]

  // By agree, from the records of a dispatch.
  std::int64_t* packed_base = nullptr;  // [R] packed index at r of my first row
  std::int64_t* packed_total = nullptr; // [R] packed rows at r
  std::int64_t* limit = nullptr;        // [R] capacity of r: rows (padded: per expert)
  std::int64_t* source_start = nullptr; // [R + 1] packed index here of each source's first row
  std::int64_t* expert_start = nullptr; // [E] first row at the owner
  std::int64_t* expert_base = nullptr;  // [E] row at the owner of my first row
  std::int64_t* expert_total = nullptr; // [E] rows at the owner

  // By the peers' move, then finish.
  std::int32_t* local_ids = nullptr;    // [P, K] local expert of each packed row's slots, -1 = not here
  std::int64_t* row_of = nullptr;       // [P, K] grouped, padded: row of that slot, -1 = none, twice or dropped
};

// Places and sizes of one operation at every rank, by agree.
struct Placement {
  Place* rows = nullptr;           // [R]
  Place* scales = nullptr;         // [R]
  Place* ids = nullptr;            // [R] dispatch: where local ids land; unused in combine
  Place* weights = nullptr;        // [R]
  Place* values = nullptr;         // [R] combine
  std::int64_t* row_stride = nullptr;    // [R] bytes, combine
  std::int64_t* scale_stride = nullptr;  // [R]
  std::int64_t* lateness_ns = nullptr;   // [R] how much later than mine each peer's OPEN was sent
};

}  // namespace sluice::core
