// The data kernels that an engine supplies. An argument struct is a kernel's signature; what each must
// do stands above it. All of them but plan and finish (Run::always) do nothing when may_proceed() is false;
// those after OPEN do nothing unless the verdict is `go`, but that finish clears what the caller sees.
#pragma once

#include <cstdint>
#include <variant>

#include <sluice/options.h>
#include <sluice/tensor.h>

#include "core/record.h"
#include "core/report.h"
#include "core/tables.h"

namespace sluice::core {

// `makes_route` in what follows: this is a dispatch with new decisions, which fills the tables of `route`;
// else they stand, and are only read.

// What the caller of dispatch sees besides rows and scales. Null where not given.
struct DispatchOutputs {
  std::int64_t capacity = 0;             // rows (padded: per expert)
  std::int32_t* local_ids = nullptr;     // packed [capacity, K]
  float* weights = nullptr;              // packed [capacity, K], else one per row
  std::int64_t weight_count = 0;
  std::int64_t* num_rows = nullptr;      // [1]
  std::int32_t* counts = nullptr;        // [L]
  std::int32_t* aligned_counts = nullptr;
  std::int64_t* offsets = nullptr;       // packed [R + 1], else [L + 1]
  std::int64_t offset_count = 0;
  std::int64_t* dropped = nullptr;       // [1]
};

// Local, before anything is said to a peer: fills expert_of, send_index, slot_index and sent of the
// route, and notes the first illegal id in report->fault when `checks`. Only where a route is made.
struct PlanArgs {
  const Topology* topology = nullptr;
  RouteTables route;
  const void* ids = nullptr;
  bool ids_are_64_bit = false;
  const std::uint8_t* rank_mask = nullptr;
  bool checks = false;
  Report* report = nullptr;
};

// Writes the control record, with the counts `sent`, into the page of every rank of the node. Its tail
// is the OPEN signal. A fault in the report turns it into a refusal.
struct PublishArgs {
  const Topology* topology = nullptr;
  const AddressTable* addresses = nullptr;
  PageLayout page;
  std::int32_t channel = 0;
  ControlRecord record;
  const std::int32_t* sent = nullptr;  // [R + E], or null: no counts
  bool expert_counts = false;
  bool checked = false;                // the ids, by plan: report->fault says what it found
  const Outcome* made = nullptr;       // of the route that is used, refused unless it went; null for a new one
  Report* report = nullptr;
};

// The first kernel after OPEN and the only one that reads the page: decides (verdict), and copies what
// later kernels and the host need.
struct AgreeArgs {
  const Topology* topology = nullptr;
  const AddressTable* addresses = nullptr;
  PageLayout page;
  std::int32_t channel = 0;
  RouteTables route;
  Placement placement;
  std::int64_t window_bytes = 0;
  bool makes_route = false;
  bool drop = false;          // OnOverflow::drop
  OperationKind kind = OperationKind::none;
  Report* report = nullptr;
};

// The scales of rows, and how they lie at the destination.
struct ScaleShape {
  std::int64_t count = 0;  // S, of one row; 0: there are none
  std::int64_t size = 0;   // bytes of one
  ScaleLayout layout = ScaleLayout::row;

  // Bytes from the first scale to scale s of `row`. `ld`: scales from one column to the next, if they lie so.
  SLUICE_HD std::int64_t offset(std::int64_t row, std::int64_t s, std::int64_t ld) const {
    return (layout == ScaleLayout::row ? row * count + s : s * ld + row) * size;
  }
};

// Sends rows, scales, local ids and weights to their final place at every destination.
struct MoveArgs {
  const Topology* topology = nullptr;
  const AddressTable* addresses = nullptr;
  RouteTables route;
  Placement placement;
  const std::byte* rows = nullptr;
  std::int64_t row_stride = 0;          // bytes between the caller's rows
  std::int64_t row_bytes = 0;           // of a row as it lands
  std::int64_t elements = 0;            // H
  DataType dtype = DataType::bf16;      // of the caller's rows
  Quantise quantise = Quantise::none;
  const std::byte* scales = nullptr;    // the caller's
  std::int64_t scale_row_stride = 0;    // bytes
  std::int64_t scale_stride = 0;        // bytes between scales of a row
  ScaleShape scale_shape;
  const float* weights = nullptr;       // [T, K]
  bool makes_route = false;             // then local ids go with the rows
  const Report* report = nullptr;
};

// Dispatch, after CLOSE: the outputs that the caller sees, the local fan-out, padding, statistics. Outputs
// beyond the rows are ids -1 and weights 0; all are, and counts 0, when the operation did not go or has failed.
struct FinishArgs {
  const Topology* topology = nullptr;
  RouteTables route;
  Placement placement;
  DispatchOutputs outputs;
  bool makes_route = false;
  std::byte* landed = nullptr;          // where peers wrote rows
  std::byte* rows = nullptr;            // what the caller sees; the same unless `output` was given
  std::int64_t row_bytes = 0;
  std::int64_t row_stride = 0;          // of `rows`, bytes
  std::int64_t expert_stride = 0;       // of `rows` in padded layout, bytes
  std::byte* scales = nullptr;
  ScaleShape scale_shape;
  std::int64_t scale_ld = 0;            // column layout
  bool zero_padding = false;
  bool exact = false;                   // the host takes rows beyond the count back: pad none of them
  const float* arrived_weights = nullptr;  // [P, K], null: none were sent
  std::int32_t* expert_load = nullptr;  // [L]
  std::int64_t* waited = nullptr;       // [R]
  Report* report = nullptr;
};

// Combine, before OPEN: brings the caller's rows into packed order in own arena memory (sums grouped and
// padded rows of one token; copies packed rows that peers cannot reach), weights and values too. Each
// output is null when not needed.
struct GatherArgs {
  const Topology* topology = nullptr;
  RouteTables route;
  const std::byte* rows = nullptr;
  std::int64_t rows_given = 0;          // fewer than the route needs: nothing is gathered, agree reports it
  std::int64_t row_stride = 0;          // bytes
  std::int64_t expert_stride = 0;       // padded, bytes
  DataType dtype = DataType::bf16;
  DataType sum_type = DataType::bf16;   // fp32 with single_rounding
  std::int64_t elements = 0;
  const float* weights = nullptr;       // one per row of the caller's layout
  const float* values = nullptr;        // packed [N, K], else one per row
  std::byte* rows_out = nullptr;        // [P, H] of sum_type
  float* weights_out = nullptr;         // packed: [P]
  float* values_out = nullptr;          // [P, K]
};

// Combine: reads the rows of this rank's tokens from the peers and sums them.
struct ReduceArgs {
  const Topology* topology = nullptr;
  const AddressTable* addresses = nullptr;
  RouteTables route;
  Placement placement;
  DataType in_type = DataType::bf16;
  DataType out_type = DataType::bf16;
  std::int64_t elements = 0;
  const std::byte* bias[2] = {nullptr, nullptr};
  std::int64_t bias_stride[2] = {0, 0};  // bytes
  std::byte* out = nullptr;
  std::int64_t out_stride = 0;           // bytes
  bool weighted = false;
  float* values = nullptr;               // [T, K]
  std::int64_t* waited = nullptr;        // [R]
  Report* report = nullptr;
};

// No work: the tail of an operation that was stopped or only checks.
struct SealArgs {};

using KernelArgs =
    std::variant<PlanArgs, PublishArgs, AgreeArgs, MoveArgs, FinishArgs, GatherArgs, ReduceArgs, SealArgs>;

}  // namespace sluice::core
