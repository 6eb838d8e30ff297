// Arguments and results of dispatch.
#pragma once

#include <cstdint>
#include <vector>

#include <sluice/event.h>
#include <sluice/options.h>
#include <sluice/route.h>
#include <sluice/tensor.h>

namespace sluice {

// T tokens of this rank (T may be 0, and differ from the peers'), H elements each, K experts chosen per
// token. Exactly one of `expert_ids`, `rank_mask` and `route` says where they go. All ranks give the
// same H, K, element types, layout, counts, alignment, quantise, scale_layout and on_overflow.
struct DispatchArgs {
  // [T, H] bf16, fp16, fp32, e4m3, e5m2, int8, uint8 or fp4x2; int32 and int64 are refused. A row has a multiple of 16
  // bytes, its elements are contiguous, and it begins at a multiple of 16 bytes.
  ConstTensorView rows{};
  ConstTensorView scales{};      // optional [T, S], any type, any strides; S elements are a multiple of 4 bytes
  ConstTensorView expert_ids{};  // [T, K] int32 or int64, row-major; -1 = no expert
  ConstTensorView rank_mask{};   // [T, R] uint8, row-major; not 0 = goes there. Packed layout only; no ids come out
  // Of an earlier dispatch of this communicator, to send other data the same way. T, K, the alignment and what an
  // overflow dropped are the route's (`alignment`, `on_overflow` and `checks` have no effect). `layout` must be
  // the route's, `capacity` 0 or the route's. H, element type, scales, weights, quantise and counts are this call's.
  Route route{};
  ConstTensorView weights{};     // optional [T, K] fp32, row-major; not with rank_mask

  Layout layout = Layout::packed;
  Counts counts = Counts::exact;
  // Rows of the result (padded: per local expert). 0 stands for: with `route`, the route's (packed and grouped, when
  // the host knows it: as many as came); else with `output`, as many as `output` holds; else, when counts are exact,
  // the layout packed or grouped and on_overflow error, as many as the arena has room for, at most the upper bound;
  // else the upper bound: what can come at most from `max_tokens` tokens of every rank.
  std::int64_t capacity = 0;
  std::int64_t alignment = 1;  // grouped: rows to which each expert's start is aligned; no effect in other layouts
  OnOverflow on_overflow = OnOverflow::error;
  Quantise quantise = Quantise::none;
  ScaleLayout scale_layout = ScaleLayout::row;
  bool zero_padding = false;   // also zero the rows (and scales) that no token filled

  // Optional caller's memory for the rows, [n, H] or [local experts, n, H], n >= capacity; none = the arena. Every
  // row at a multiple of 16 bytes. Costs one local copy.
  TensorView output{};
  TensorView expert_load{};      // optional [local experts] int32; rows per expert are added to it
  TensorView waited{};           // optional [R] int64; nanoseconds waited for each rank are added to it

  int channel = 0;             // 0 to channels - 1: calls of one channel run one after the other
  int num_sms = 0;             // SMs at most; CPU engine: workers. 0 = the communicator's
  Method method = Method::automatic;
  RunOn run_on = RunOn::own_lane;  // or in the caller's stream; a captured call always is there
  Checks checks = Checks::by_default;
  // Events of Sluice's own calls, of any communicator of this process (a caller cannot make one): when they have
  // happened, the data (`after`) and the ids (`ids_after`) are there. None: they are there when the call is made,
  // or, on the CUDA engine, when the call's `stream` gets to it. After an operation that failed because a peer was
  // late or gone this call and its channel fail too; after one that was refused it runs.
  Event after{};
  Event ids_after{};
};

// N rows came. With Counts::exact shapes hold the true number, with bounded the capacity. Everything
// but `host` is written when `ready` has happened; after a failure counts are 0 and ids -1.
struct DispatchResult {
  TensorView rows{};            // packed [N, H], grouped [M, H], padded [local experts, capacity, H]; e4m3 if quantised
  // [.., S], `..` as in `rows`, strides by scale_layout; not given when there are none. The type of the given scales;
  // fp32 after Quantise::e4m3; after e4m3_power_of_two uint8 exponents, S padded to a multiple of 4.
  TensorView scales{};
  TensorView local_ids{};       // packed: [N, K] int32, id within this rank, -1 = not here
  TensorView weights{};         // fp32: packed [N, K] (0 = not here); grouped [M]; padded [local experts, capacity]
  TensorView num_rows{};        // int64 [1]: N, M (padding included), or for padded the sum of counts
  TensorView counts{};          // int32 [local experts]: rows of each expert (packed: tokens that chose it)
  TensorView aligned_counts{};  // int32 [local experts]: grouped, rounded up to the alignment; otherwise as counts
  // int64, first rows, and one past the last. Packed [R + 1]: of each source rank; the last entry is N. Grouped [local
  // experts + 1]: of each expert; the last is M. Padded [local experts + 1]: e * capacity; the last is local experts *
  // capacity.
  TensorView offsets{};
  TensorView dropped{};         // int64 [1]: rows left out here (OnOverflow::drop)

  // Counts::exact only; zero or empty otherwise.
  struct Host {
    std::int64_t rows = 0;                  // as num_rows
    // [local experts]; empty for a route made from a rank mask. Packed with OnOverflow::drop: as chosen,
    // before the drop.
    std::vector<std::int64_t> per_expert;
    std::vector<std::int64_t> per_source;   // [R]: (token, rank) rows that each rank sent
  } host;

  Route route{};
  Event ready{};
};

}  // namespace sluice
