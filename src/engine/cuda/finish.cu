// finish: what the caller of dispatch sees. Grouped and padded rows first get their places by a count over
// the local ids (the same two kernels as plan), then one kernel fans rows out and writes the outputs.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/numbers.h"
#include "core/routing.h"
#include "engine/cuda/block.cuh"
#include "engine/cuda/copy_rows.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/start.cuh"
#include "engine/cuda/launch_plan.h"

namespace sluice::cuda {

using namespace core;

namespace {

// The local experts of packed rows, as choices to count.
struct LocalChoices {
  const RouteTables& route;
  std::int64_t experts;

  __device__ std::int64_t topk() const { return route.topk; }
  // Where a peer has died, what lies here is whatever lay here before: no id leads outside the counts.
  __device__ std::int32_t legal(std::int64_t n, std::int32_t k) const {
    const std::int32_t id = route.local_ids[n * route.topk + k];
    return id >= 0 && id < experts ? id : -1;
  }
  __device__ std::int32_t counted(std::int64_t n, std::int32_t k) const {
    return legal(n, k) >= 0 && first_slot(route.local_ids + n * route.topk, k) == k ? legal(n, k) : -1;
  }
  __device__ unsigned ranks_of(std::int64_t, int) const { return 0; }
};

__device__ std::int64_t local_experts(const FinishArgs& args) {
  return args.route.topk > 0 ? args.topology->local_experts(args.topology->rank) : 0;
}

__global__ void __launch_bounds__(count_threads, 1)
count_kernel(const __grid_constant__ FinishArgs args, const __grid_constant__ StepContext step, const CountScratch scratch) {
  const bool moves = may_move(step);
  const std::int64_t columns = local_experts(args);
  if (moves) count_choices(LocalChoices{args.route, columns}, scratch, step.channel->packed_rows, 0, columns, [](std::int64_t, std::int32_t) {});
  end_step(step, [&] {
    if (moves) scan_blocks(scratch, columns, [](std::int64_t, std::int32_t) {});
  });
}

__global__ void __launch_bounds__(count_threads, 1)
place_kernel(const __grid_constant__ FinishArgs args, const __grid_constant__ StepContext step, const CountScratch scratch) {
  const RouteTables& route = args.route;
  const int me = args.topology->rank;
  const std::int32_t first = args.topology->first_expert[me];
  if (may_move(step)) {
    place_choices(
        LocalChoices{route, local_experts(args)}, scratch, step.channel->packed_rows, 0, local_experts(args),
        [&](std::int64_t n, std::int32_t k, std::int32_t position) {
          std::int64_t row = -1;
          if (position >= 0) {
            const std::int32_t expert = first + route.local_ids[n * route.topk + k];
            row = route.expert_start[expert] + position;
            if (!row_fits(route, me, expert, row)) row = -1;
          }
          route.row_of[n * route.topk + k] = row;
        },
        [](std::int64_t, int, std::int32_t) {});
  }
  end_step(step);
}

// One packed row, by a warp: what goes beside it, and the places that its bytes have not reached yet.
struct LandedWork {
  const FinishArgs& args;
  std::int64_t packed_rows;

  __device__ std::int64_t rows() const { return packed_rows; }

  __device__ std::byte* row_at(std::int64_t row) const {
    return args.rows + row_offset(args.route, args.topology->rank, row, args.row_stride, args.expert_stride);
  }

  __device__ int find(Item item, int lane, Run* runs, const std::byte** source) const {
    return args.route.layout == Layout::packed ? find_packed(item.first, lane, runs, source) : find_slots(item.first, lane, runs, source);
  }
  __device__ std::byte* to(Run run) const { return row_at(run.row()); }

  __device__ int find_packed(std::int64_t n, int lane, Run* runs, const std::byte** source) const {
    if (lane == 0) {
      *source = args.landed + n * args.row_bytes;
      runs[0] = Run(n);
    }
    return args.rows == args.landed ? 0 : 1;
  }

  struct Held {};
  __device__ Held bring(Item, int) const { return {}; }
  __device__ void beside(Item item, const Run*, int, Held, int lane) const {
    if (args.route.layout != Layout::packed) slots_beside(item.first, lane);
  }

  // The row landed once, at its first slot; the other slots are filled from there.
  __device__ int find_slots(std::int64_t n, int lane, Run* runs, const std::byte** source) const {
    const std::int32_t topk = args.route.topk;
    const std::int64_t* const rows = args.route.row_of + n * topk;
    std::int64_t landed = -1;
    int count = 0;
    for (std::int32_t base = 0; base < topk; base += 32) {
      const std::int32_t k = base + lane;
      const std::int64_t row = k < topk ? rows[k] : -1;
      const unsigned there = __ballot_sync(0xffffffffu, row >= 0);
      if (landed < 0 && there != 0) landed = __shfl_sync(0xffffffffu, row, __ffs(static_cast<int>(there)) - 1);
      const std::byte* const from = args.landed + landed * args.row_bytes;
      const bool goes = row >= 0 && row_at(row) != from;
      const unsigned going = __ballot_sync(0xffffffffu, goes);
      if (goes) runs[count + __popc(going & ((1u << lane) - 1u))] = Run(row);
      count += __popc(going);
    }
    if (lane == 0) *source = args.landed + landed * args.row_bytes;
    return count;
  }

  __device__ void slots_beside(std::int64_t n, int lane) const {
    const std::int32_t topk = args.route.topk;
    const std::int64_t* const rows = args.route.row_of + n * topk;
    for (std::int32_t k = lane; args.arrived_weights && args.outputs.weights && k < topk; k += 32) {
      if (rows[k] >= 0) args.outputs.weights[rows[k]] = weight_of(n, k);
    }
    if (args.scale_shape.count == 0) return;
    std::int64_t landed = -1;
    for (std::int32_t k = 0; k < topk && landed < 0; ++k) landed = rows[k];
    if (landed >= 0) copy_slot_scales(rows, landed, lane);
  }

  // A token that names an expert twice has one row there; its weights are added in slot order.
  __device__ float weight_of(std::int64_t n, std::int32_t k) const {
    const std::int32_t* const ids = args.route.local_ids + n * args.route.topk;
    float sum = args.arrived_weights[n * args.route.topk + k];  // one alone keeps its bits
    for (std::int32_t other = k + 1; other < args.route.topk; ++other) {
      if (ids[other] == ids[k]) sum = numbers::canonical(numbers::sum(sum, args.arrived_weights[n * args.route.topk + other]));
    }
    return sum;
  }

  __device__ void copy_slot_scales(const std::int64_t* rows, std::int64_t landed, int lane) const {
    const ScaleShape& shape = args.scale_shape;
    const std::byte* const from = args.scales + shape.offset(landed, 0, args.scale_ld);
    const std::int64_t stride = shape.layout == ScaleLayout::row ? shape.size : args.scale_ld * shape.size;
    for (std::int32_t k = 0; k < args.route.topk; ++k) {
      if (rows[k] >= 0 && rows[k] != landed) copy_scales(shape, args.scales, rows[k], args.scale_ld, from, stride, lane);
    }
  }
};

// Weights of padding are 0, and its scales finite always: a maximum over the whole tensor must not meet old
// bytes. By all warps of the grid.
struct Padding {
  const FinishArgs& args;
  const DeviceChannel& channel;

  __device__ void fill() const {
    const RouteTables& route = args.route;
    if (!args.zero_padding && args.scale_shape.count == 0 && row_weights() == nullptr) return;
    const Topology& topology = *args.topology;
    const int me = topology.rank;
    const std::int64_t end = route.layout == Layout::padded ? end_of_rows(route, topology, me)
                             : args.exact                  ? channel.rows
                                                           : args.outputs.capacity;
    const std::int64_t warps = warps_of_grid(), warp = warp_of_grid();
    const auto experts = static_cast<std::int32_t>(local_experts(args));
    if (route.layout == Layout::packed) return range(channel.packed_rows, end, warp, warps);
    if (experts == 0) return range(0, end, warp, warps);
    // So many warps share an expert.
    const std::int64_t share = warps > experts ? warps / experts : 1;
#pragma unroll 1
    for (std::int64_t e = warp / share; e < experts; e += warps / share) {
      const auto expert = static_cast<std::int32_t>(topology.first_expert[me] + e);
      const ExpertRows rows = expert_rows(route, topology, me, expert);
      const std::int64_t next = e + 1 < experts ? expert_rows(route, topology, me, expert + 1).start : end;
      range(rows.start + rows.count, next < end ? next : end, warp % share, share);
    }
  }

  // One per row; packed rows have theirs in choices().
  __device__ float* row_weights() const { return args.route.layout == Layout::packed ? nullptr : args.outputs.weights; }

  __device__ void range(std::int64_t begin, std::int64_t end, std::int64_t warp, std::int64_t warps) const {
    const int lane = lane_of_thread();
    const LandedWork places{args, 0};
    float* const weights = row_weights();
#pragma unroll 1
    for (std::int64_t row = begin + warp * 32 + lane; weights && row < end; row += warps * 32) weights[row] = 0.0f;
    if (args.scale_shape.count > 0) clear_scales(begin, end, warp, warps);
    if (!args.zero_padding) return;
#pragma unroll 1
    for (std::int64_t row = begin + warp; row < end; row += warps) {
      auto* const words = reinterpret_cast<uint4*>(places.row_at(row));
#pragma unroll 1
      for (std::int64_t i = lane; i < args.row_bytes / 16; i += 32) words[i] = uint4{0, 0, 0, 0};
    }
  }

  // Those of a row are a multiple of 4 bytes.
  __device__ void clear_scales(std::int64_t begin, std::int64_t end, std::int64_t warp, std::int64_t warps) const {
    const ScaleShape& shape = args.scale_shape;
    const std::int64_t first = warp * 32 + lane_of_thread(), step = warps * 32;
    if (shape.layout == ScaleLayout::row) {
      auto* const words = reinterpret_cast<std::uint32_t*>(args.scales + shape.offset(begin, 0, args.scale_ld));
      const std::int64_t count = (end - begin) * shape.count * shape.size / 4;
#pragma unroll 1
      for (std::int64_t i = first; i < count; i += step) words[i] = 0;
      return;
    }
#pragma unroll 1
    for (std::int64_t s = 0; s < shape.count; ++s) {
      std::byte* const column = args.scales + shape.offset(begin, s, args.scale_ld);
#pragma unroll 1
      for (std::int64_t i = first; i < (end - begin) * shape.size; i += step) column[i] = std::byte{0};
    }
  }
};

// By all threads of the block.
template <class T>
__device__ void fill(T* at, std::int64_t count, T value) {
#pragma unroll 1
  for (std::int64_t i = threadIdx.x; at && i < count; i += blockDim.x) at[i] = value;
}

// By the last block, when everything has landed.
struct Outputs {
  const FinishArgs& args;
  const DeviceChannel& channel;

  __device__ void clear() const {
    const DispatchOutputs& out = args.outputs;
    clear_counts();
    fill(out.local_ids, out.capacity * args.route.topk, -1);
    fill(out.weights, out.weight_count, 0.0f);
  }

  __device__ void clear_counts() const {
    const DispatchOutputs& out = args.outputs;
    const std::int64_t experts = args.topology->local_experts(args.topology->rank);
    fill(out.num_rows, 1, std::int64_t{0});
    fill(out.counts, experts, 0);
    fill(out.aligned_counts, experts, 0);
    fill(out.offsets, out.offset_count, std::int64_t{0});
    fill(out.dropped, 1, std::int64_t{0});
  }

  __device__ void write() const {
    const DispatchOutputs& out = args.outputs;
    const auto experts = static_cast<std::int32_t>(local_experts(args));
    // Where not all of them are written.
    if (experts == 0 || channel.dropped > 0) clear_counts();
    __syncthreads();
    if (args.route.layout == Layout::packed) write_packed(experts);
    else write_experts(experts);
    if (threadIdx.x == 0) {
      *out.num_rows = channel.rows;
      *out.dropped = channel.dropped;
    }
    __syncthreads();
#pragma unroll 1
    for (std::int32_t e = threadIdx.x; args.expert_load && e < experts; e += blockDim.x) args.expert_load[e] += out.counts[e];
#pragma unroll 1
    for (int r = threadIdx.x; args.waited && r < args.route.ranks; r += blockDim.x) {
      args.waited[r] += args.placement.lateness_ns[r];
    }
  }

  __device__ void write_packed(std::int32_t experts) const {
    const DispatchOutputs& out = args.outputs;
    const RouteTables& route = args.route;
#pragma unroll 1
    for (int s = threadIdx.x; s <= route.ranks; s += blockDim.x) {
      out.offsets[s] = route.source_start[s] < channel.packed_rows ? route.source_start[s] : channel.packed_rows;
    }
    // Without a drop, agree knows them; else they are counted.
    const std::int32_t first = args.topology->first_expert[args.topology->rank];
    if (channel.dropped > 0) {
      const LocalChoices choices{route, experts};
#pragma unroll 1
      for (std::int64_t i = threadIdx.x; i < channel.packed_rows * route.topk; i += blockDim.x) {
        const std::int32_t e = choices.counted(i / route.topk, static_cast<std::int32_t>(i % route.topk));
        if (e >= 0) atomicAdd(out.counts + e, 1);
      }
    } else {
#pragma unroll 1
      for (std::int32_t e = threadIdx.x; e < experts; e += blockDim.x) {
        out.counts[e] = static_cast<std::int32_t>(route.expert_total[first + e]);
      }
    }
    __syncthreads();
#pragma unroll 1
    for (std::int32_t e = threadIdx.x; e < experts; e += blockDim.x) out.aligned_counts[e] = out.counts[e];
  }

  __device__ void write_experts(std::int32_t experts) const {
    const DispatchOutputs& out = args.outputs;
    const Topology& topology = *args.topology;
    const int me = topology.rank;
#pragma unroll 1
    for (std::int32_t e = threadIdx.x; e < experts; e += blockDim.x) {
      const ExpertRows rows = expert_rows(args.route, topology, me, topology.first_expert[me] + e);
      out.counts[e] = static_cast<std::int32_t>(rows.count);
      out.aligned_counts[e] = static_cast<std::int32_t>(rows.aligned);
      out.offsets[e] = rows.start;
    }
    if (threadIdx.x != 0) return;
    out.offsets[experts] = args.route.layout == Layout::padded ? end_of_rows(args.route, topology, me) : channel.rows;
  }
};

__device__ void write_outputs(const FinishArgs& args, const StepContext& step, bool moves) {
  end_step(step, [&] {
    const Outputs outputs{args, *step.channel};
    if (moves && !DeviceFlags(step).failed()) outputs.write();
    else outputs.clear();
  });
}

// `count` words of 4 bytes between slices of the arena, and `beyond` behind them up to `size`, by all threads of
// the grid; nothing when `to` is null.
template <class T>
__device__ void copy_together(T* to, const T* from, std::int64_t count, std::int64_t size, T beyond) {
  if (to == nullptr) return;
  if (from == nullptr) count = 0;
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 1
  for (std::int64_t i = first; i < count / 4; i += stride) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
#pragma unroll 1
  for (std::int64_t i = count / 4 * 4 + first; i < size; i += stride) to[i] = i < count ? from[i] : beyond;
}

// Packed: local ids and weights of rows, and of room for rows that did not come.
__device__ void choices(const FinishArgs& args, std::int64_t packed_rows) {
  if (args.route.layout != Layout::packed) return;
  const DispatchOutputs& out = args.outputs;
  const std::int64_t slots = packed_rows * args.route.topk;
  copy_together(out.local_ids, args.route.local_ids, slots, out.capacity * args.route.topk, -1);
  copy_together(out.weights, args.arrived_weights, slots, out.weight_count, 0.0f);
}

// As many as have registers.
constexpr int fan_out_warps = 16;

// Rows have bytes to move still.
__global__ void __launch_bounds__(32 * fan_out_warps, 1)
fan_out_kernel(const __grid_constant__ FinishArgs args, const __grid_constant__ StepContext step,
               const __grid_constant__ CopyShape shape) {
  extern __shared__ __align__(128) unsigned char memory[];
  const bool moves = may_move(step);
  if (moves) {
    choices(args, step.channel->packed_rows);
    copy_rows(shape, memory, LandedWork{args, step.channel->packed_rows});
    Padding{args, *step.channel}.fill();
  }
  write_outputs(args, step, moves);
}

// Packed rows in the arena lie where they landed.
__global__ void __launch_bounds__(count_threads, 1)
finish_kernel(const __grid_constant__ FinishArgs args, const __grid_constant__ StepContext step) {
  const bool moves = may_move(step);
  if (moves) {
    choices(args, step.channel->packed_rows);
    Padding{args, *step.channel}.fill();
  }
  write_outputs(args, step, moves);
}

}  // namespace

cudaError_t launch(const FinishArgs& args, const StepContext& step, const Launch& how) {
  const std::int64_t rows = std::max<std::int64_t>(args.route.packed_limit, 1);
  const auto at_most = [&](std::int64_t blocks) {
    return static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, how.num_sms));
  };
  if (args.route.layout == Layout::packed && args.rows == args.landed) {
    return start(finish_kernel, {at_most(rows / 64), count_threads, 0}, how, args, step);
  }
  StepContext last = step;
  Launch last_how = how;
  const std::int64_t columns = args.route.topk > 0 ? how.topology->local_experts(how.topology->rank) : 0;
  if (args.route.layout != Layout::packed && args.makes_route && columns > 0) {
    const auto [blocks, scratch] = count_shape(how, rows, columns);
    cudaError_t error = start(count_kernel, {blocks, count_threads, scratch.shared_bytes}, how, args, step.inner(), scratch);
    last.awaited = false;
    if (error == cudaSuccess) error = start(place_kernel, {blocks, count_threads, scratch.shared_bytes}, how.next(), args, last.inner(), scratch);
    if (error != cudaSuccess) return error;
    last_how = how.next();
  }
  const CopyShape shape = copy_shape(args.row_bytes, args.route.layout == Layout::packed ? 1 : args.route.topk, fan_out_warps);
  return start(fan_out_kernel, {blocks_for(how, rows, shape.warps), shape.threads(), ring_shared_bytes}, last_how, args, last, shape);
}

cudaError_t prepare_finish() {
  cudaError_t error = prepare_all(ring_shared_bytes, fan_out_kernel);
  if (error == cudaSuccess) error = prepare_all(count_shared_bytes, count_kernel, place_kernel);
  return error != cudaSuccess ? error : prepare_all(0, finish_kernel);
}

}  // namespace sluice::cuda
