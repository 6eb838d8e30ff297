// The control record: what each rank tells every rank of its node with OPEN, and the decision that all
// of them take from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/place.h"
#include "core/status.h"

namespace sluice::core {

// What all ranks must agree on in one call. Names for messages: sentences.cpp.
enum class Field : std::uint32_t {
  kind, operation, route, routing, layout, dtype, hidden, topk, scale_bytes, counts, alignment, quantise,
  scale_layout, on_overflow, weights, values, single_rounding,
  count
};
inline constexpr int field_count = static_cast<int>(Field::count);

// A route is named by the call that made it: its number, and its channel times this. 0: no route.
inline constexpr std::int64_t routes_of_channel = std::int64_t{1} << 40;

struct Digest {
  std::int64_t value[field_count] = {};
  SLUICE_HD std::int64_t& operator[](Field field) { return value[static_cast<int>(field)]; }
  SLUICE_HD std::int64_t operator[](Field field) const { return value[static_cast<int>(field)]; }
};

enum class IdProblem : std::uint32_t { none, out_of_range, twice };

// An illegal expert id, found by plan.
struct IdFault {
  IdProblem problem = IdProblem::none;
  std::int32_t column = 0;
  std::int64_t row = 0;
  std::int64_t value = 0;
  std::int64_t experts = 0;  // ids are below
};

// call: an illegal call, with `reason`; id: with `fault`; route: the dispatch that made it did not complete;
// record: what it published names memory outside of its window.
enum class Refusal : std::uint32_t { none, call, id, route, record };

inline constexpr int reason_bytes = 240;

// The fixed part; the counts follow (record_bytes). Written by its source into the page of every rank
// of the node before OPEN, read once by the first kernel after await OPEN (assumption A3).
struct alignas(64) ControlRecord {
  Refusal refusal = Refusal::none;
  IdFault fault;
  char reason[reason_bytes] = {};
  Digest digest;
  // dispatch: where the peers' rows shall start here; combine: where my rows lie.
  Place rows, scales, ids, weights, values;
  std::int64_t row_stride = 0;     // bytes, combine
  std::int64_t scale_stride = 0;   // column layout: scale elements from one scale to the next
  std::int64_t capacity = 0;       // rows (padded: per expert)
  std::int64_t sent_at_ns = 0;
};

// The counts C[source][rank] and, unless the route comes from a rank mask, C[source][expert].
SLUICE_HD inline std::int32_t* counts_per_rank(ControlRecord* record) {
  return reinterpret_cast<std::int32_t*>(record + 1);
}
SLUICE_HD inline const std::int32_t* counts_per_rank(const ControlRecord* record) {
  return reinterpret_cast<const std::int32_t*>(record + 1);
}

inline constexpr std::int64_t memory_page = 4096;

// The window of a rank: the control page (first the engine's flags, then the records [channel][source]),
// then, on a page of memory of its own, the arena.
struct PageLayout {
  std::int64_t engine_bytes = 0;
  std::int64_t record_bytes = 0;
  std::int32_t ranks = 1;
  std::int32_t channels = 1;

  SLUICE_HD std::int64_t record_offset(int channel, int source) const {
    return engine_bytes + (static_cast<std::int64_t>(channel) * ranks + source) * record_bytes;
  }
  SLUICE_HD std::int64_t bytes() const { return record_offset(channels, 0); }
  SLUICE_HD std::int64_t arena_offset() const { return align_up(bytes(), memory_page); }
};

inline PageLayout page_layout(std::int64_t engine_bytes, int ranks, int experts, int channels) {
  const std::int64_t counts = static_cast<std::int64_t>(sizeof(std::int32_t)) * (ranks + experts);
  const std::int64_t record = align_up(static_cast<std::int64_t>(sizeof(ControlRecord)) + counts, 64);
  return {align_up(engine_bytes, 64), record, ranks, channels};
}

enum class Outcome : std::uint32_t { pending, go, refused, differs, no_room };

// The decision after OPEN; the same on every rank, since all saw the same records.
struct Verdict {
  Outcome outcome = Outcome::pending;
  std::int32_t rank = -1;   // who refused, differs, or lacks room
  std::int32_t other = -1;  // differs from whom
  Field field = Field::kind;
  std::int64_t value = 0, other_value = 0;   // differs
  std::int64_t need = 0, capacity = 0;       // no_room, rows; per expert if `expert` >= 0
  std::int64_t expert = -1;
  Refusal refusal = Refusal::none;
  IdFault fault;
  char reason[reason_bytes] = {};
};

}  // namespace sluice::core
