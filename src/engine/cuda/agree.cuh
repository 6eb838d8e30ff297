// Agreement by one block: the arithmetic of core/agree.h, spread over threads where there is much of it.
#pragma once

#include <cub/block/block_scan.cuh>

#include "core/agree.h"
#include "engine/cuda/step.cuh"

namespace sluice::cuda {

inline constexpr int agree_threads = 512;

__device__ inline bool records_match(const core::Records& records, int ranks, std::int64_t window_bytes) {
  bool odd = false;
#pragma unroll 1
  for (int r = threadIdx.x; r < ranks; r += blockDim.x) odd |= !core::names_own_window(records.of(r), r, window_bytes);
#pragma unroll 1
  for (int i = threadIdx.x; i < ranks * core::field_count; i += blockDim.x) {
    const int r = i / core::field_count, f = i % core::field_count;
    odd |= records.of(r).refusal != core::Refusal::none ||
           records.of(r).digest.value[f] != records.of(0).digest.value[f];
  }
  return __syncthreads_or(odd) == 0;
}

// expert_start of grouped rows: sums of the aligned totals before it, of the same rank.
__device__ __noinline__ inline void start_grouped(const core::AgreeArgs& args) {
  const core::Topology& topology = *args.topology;
  const core::RouteTables& route = args.route;
  using Scan = cub::BlockScan<std::int64_t, agree_threads>;
  __shared__ typename Scan::TempStorage temporary;
  __shared__ std::int64_t before_rank[limits::ranks_per_node];
  std::int64_t before_tile = 0;
#pragma unroll 1
  for (int base = 0; base < topology.experts; base += agree_threads) {
    const int e = base + static_cast<int>(threadIdx.x);
    const bool inside = e < topology.experts;
    const std::int64_t rows = inside ? core::align_up(route.expert_total[e], route.alignment) : 0;
    std::int64_t before = 0, tile = 0;
    Scan(temporary).ExclusiveSum(rows, before, tile);
    if (inside) {
      const int owner = topology.owner_of(e);
      route.expert_start[e] = before_tile + before;
      if (e == topology.first_expert[owner]) before_rank[owner] = before_tile + before;
    }
    before_tile += tile;
    __syncthreads();
  }
#pragma unroll 1
  for (int e = threadIdx.x; e < topology.experts; e += blockDim.x) {
    core::start_expert(route, e, route.expert_start[e] - before_rank[topology.owner_of(e)]);
  }
}

// What the ranks get, and, if this block `tells`, the rest: the sources here and the experts.
template <bool all_layouts>
__device__ inline void fill_route_together(const core::AgreeArgs& args, const core::Records& records, bool tells) {
  const core::Topology& topology = *args.topology;
  const core::RouteTables& route = args.route;
#pragma unroll 1
  for (int r = threadIdx.x; r < route.ranks; r += blockDim.x) core::fill_rank(records, topology, route, r);
  if (!tells) return;
#pragma unroll 1
  for (int s = threadIdx.x; s <= route.ranks; s += blockDim.x) {
    std::int64_t start = 0;
#pragma unroll 1
    for (int before = 0; before < s; ++before) start += records.rows(before, topology.rank);
    route.source_start[s] = start;
  }
  if (route.topk == 0) return;
  __syncthreads();
#pragma unroll 1
  for (int e = threadIdx.x; e < topology.experts; e += blockDim.x) core::fill_expert(records, topology, route, e);
  __syncthreads();
  if constexpr (!all_layouts) return;
  if (route.layout == Layout::grouped) start_grouped(args);
  if (route.layout != Layout::padded) return;
#pragma unroll 1
  for (int e = threadIdx.x; e < topology.experts; e += blockDim.x) {
    core::start_expert(route, e, core::padded_start(route, topology, topology.owner_of(e), e));
  }
}

// Whether every rank has room; the sentence about the one that has not is core's.
__device__ inline bool has_room(const core::Records& records, const core::Topology& topology,
                                const core::RouteTables& route, bool makes_route) {
  __shared__ unsigned long long need[limits::ranks_per_node];
#pragma unroll 1
  for (int r = threadIdx.x; r < route.ranks; r += blockDim.x) {
    std::int64_t expert = -1;
    need[r] = route.layout == Layout::padded ? 0 : core::rows_needed(route, topology, r, &expert);
  }
  __syncthreads();
  if (route.layout == Layout::padded) {
#pragma unroll 1
    for (int e = threadIdx.x; e < topology.experts; e += blockDim.x) {
      atomicMax(need + topology.owner_of(e), static_cast<unsigned long long>(route.expert_total[e]));
    }
  }
  __syncthreads();
  bool lacks = false;
#pragma unroll 1
  for (int r = threadIdx.x; r < route.ranks; r += blockDim.x) {
    auto rows = static_cast<std::int64_t>(need[r]);
    if (!makes_route && rows > route.limit[r]) rows = route.limit[r];
    lacks |= rows > records.of(r).capacity;
  }
  return __syncthreads_or(lacks) == 0;
}

// core::fill_report, and a copy of the counts for the kernels that follow.
__device__ inline void fill_report_together(const core::RouteTables& route, const core::Topology& topology, core::Report& report,
                                   DeviceChannel& channel) {
  __shared__ unsigned long long kept_in_all, dropped_in_all;
  const int me = topology.rank;
  if (threadIdx.x == 0) kept_in_all = dropped_in_all = 0;
  __syncthreads();
#pragma unroll 1
  for (int s = threadIdx.x; s < route.ranks; s += blockDim.x) {
    report.per_source[s] = route.source_start[s + 1] - route.source_start[s];
  }
  std::int64_t kept = 0, dropped = 0;
#pragma unroll 1
  for (int e = topology.first_expert[me] + threadIdx.x; route.topk > 0 && e < topology.first_expert[me + 1]; e += blockDim.x) {
    const std::int64_t rows = core::rows_to_report(route, me, e);
    report.per_expert[e - topology.first_expert[me]] = rows;
    kept += rows;
    dropped += route.expert_total[e] - rows;
  }
  if (kept != 0) atomicAdd(&kept_in_all, static_cast<unsigned long long>(kept));
  if (dropped != 0) atomicAdd(&dropped_in_all, static_cast<unsigned long long>(dropped));
  __syncthreads();
  if (threadIdx.x != 0) return;
  kept = static_cast<std::int64_t>(kept_in_all);
  dropped = static_cast<std::int64_t>(dropped_in_all);
  channel.packed_rows = core::packed_rows_here(route, me);
  if (route.layout == Layout::packed) dropped += route.packed_total[me] - channel.packed_rows;
  channel.dropped = dropped;
  channel.rows = kept;
  if (route.layout == Layout::packed) channel.rows = channel.packed_rows;
  if (route.layout == Layout::grouped) channel.rows = core::rows_kept(route, topology, me);
  report.packed_rows = channel.packed_rows;
  report.dropped = channel.dropped;
  report.rows = channel.rows;
}

// Why it does not go. Out of line: what stands between the instructions of a good operation is fetched too, and
// small kernels spend most of their time on that.
__device__ __noinline__ inline core::Outcome say_why_not(const core::AgreeArgs& args, core::Records records) {
  const core::Topology& topology = *args.topology;
  core::Verdict& verdict = args.report->verdict;
  core::compare_records(records, topology.ranks, args.window_bytes, verdict);
  if (verdict.outcome == core::Outcome::go) core::check_room(records, topology, args.route, args.makes_route, verdict);
  return verdict.outcome;
}

// core::agree by all threads of a block. The blocks of a kernel that goes on with the rows each do it for themselves, and
// write the same where later steps read it; one of them `tells`: it writes what only finish and the host read. They need
// not know where experts start, so that only a kernel of one block makes routes of `all_layouts`.
template <bool all_layouts>
__device__ inline bool agree_in_block(const core::AgreeArgs& args, DeviceChannel& channel, bool tells) {
  const core::Topology& topology = *args.topology;
  const core::Records records{args.addresses->base[topology.rank], args.page, args.channel};
  const core::RouteTables& route = args.route;
  bool goes = records_match(records, topology.ranks, args.window_bytes);
  if (goes && args.makes_route) fill_route_together<all_layouts>(args, records, tells);
  __syncthreads();
  const bool drops = args.makes_route && args.drop;
  if (goes && !drops) goes = has_room(records, topology, route, args.makes_route);
  if (goes) {
#pragma unroll 1
    for (int r = threadIdx.x; r < topology.ranks; r += blockDim.x) core::fill_placement(records, topology.rank, args.placement, r);
    if (tells && args.kind == core::OperationKind::dispatch) fill_report_together(route, topology, *args.report, channel);
  }
  if (!tells || threadIdx.x != 0) return goes;
  const core::Outcome outcome = goes ? core::Outcome::go : say_why_not(args, records);
  channel.outcome = outcome;
  if (args.makes_route) *route.outcome = outcome;
  if (goes) args.report->verdict.outcome = outcome;
  return goes;
}

// As the last thing that its kernel does: the next may come to its SMs meanwhile.
__device__ inline void agree_together(const core::AgreeArgs& args, DeviceChannel& channel) {
  let_next_kernel_come();
  agree_in_block<true>(args, channel, true);
}

// May work, and the operation goes on: agreed before, or here.
__device__ inline bool may_move(const core::AgreeArgs& agree, bool agrees, const StepContext& step) {
  if (!agrees) return may_move(step);
  if (!may_work(step)) return false;
  if (blockIdx.x == 0 && threadIdx.x == 0) tell_progress(step, Phase::moves);
  const bool goes = agree_in_block<false>(agree, *step.channel, blockIdx.x == 0);
  __syncthreads();
  return goes;
}

}  // namespace sluice::cuda
