// gather: the caller's rows into packed order, local sums included. reduce: the rows of this rank's tokens
// from all ranks, summed.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/routing.h"
#include "engine/cuda/block.cuh"
#include "engine/cuda/agree.cuh"
#include "engine/cuda/copy_rows.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/start.cuh"
#include "engine/cuda/sum_rows.cuh"

namespace sluice::cuda {

using namespace core;

namespace {

// Packed rows that peers cannot reach: copied as they are.
struct PackedRows {
  const GatherArgs& args;

  __device__ std::int64_t rows() const { return packed_rows_here(args.route, args.topology->rank); }
  __device__ int find(Item item, int lane, Run* runs, const std::byte** source) const {
    if (lane == 0) {
      *source = args.rows + item.first * args.row_stride;
      runs[0] = Run(item.first);
    }
    return 1;
  }
  __device__ std::byte* to(Run run) const { return args.rows_out + run.row() * args.elements * size_of(args.dtype); }
  struct Held {};
  __device__ Held bring(Item, int) const { return {}; }
  __device__ void beside(Item, const Run*, int, Held, int) const {}
};

// The grouped or padded rows of one packed row, in ascending expert order.
struct LocalSum {
  const GatherArgs& args;

  __device__ std::int64_t items() const { return packed_rows_here(args.route, args.topology->rank); }

  __device__ int find(std::int64_t n, int lane, const std::byte** sources, float* weights) const {
    const RouteTables& route = args.route;
    const std::int32_t* const ids = route.local_ids + n * route.topk;
    const std::int64_t* const rows = route.row_of + n * route.topk;
    int count = 0;
    for (std::int32_t base = 0; base < route.topk; base += 32) {
      const std::int32_t k = base + lane;
      const bool there = k < route.topk && rows[k] >= 0;
      count += __popc(__ballot_sync(0xffffffffu, there));
      if (!there) continue;
      // Its place among the token's slots: experts are different wherever a row is.
      int before = 0;
      for (std::int32_t other = 0; other < route.topk; ++other) before += rows[other] >= 0 && ids[other] < ids[k];
      sources[before] = args.rows + row_offset(route, args.topology->rank, rows[k], args.row_stride, args.expert_stride);
      if (args.weights) weights[before] = args.weights[rows[k]];
    }
    return count;
  }
  __device__ std::byte* out(std::int64_t n) const { return args.rows_out + n * args.elements * size_of(args.sum_type); }
  __device__ const std::byte* bias(int, std::int64_t) const { return nullptr; }
};

// Whether a gather has what it needs: agree reports what is missing.
__device__ bool may_gather(const GatherArgs& args, const StepContext& step) {
  if (!may_work(step) || *args.route.outcome != Outcome::go) return false;
  return rows_kept_together(args.route, *args.topology, args.topology->rank) <= args.rows_given;
}

// One float per row, and K per row. By all threads of the grid.
__device__ void gather_floats(const GatherArgs& args) {
  const RouteTables& route = args.route;
  const std::int64_t rows = packed_rows_here(route, args.topology->rank);
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t n = first; args.weights_out && n < rows; n += stride) args.weights_out[n] = args.weights[n];
  for (std::int64_t i = first; args.values_out && i < rows * route.topk; i += stride) {
    const std::int64_t n = i / route.topk;
    const auto k = static_cast<std::int32_t>(i % route.topk);
    float value = 0.0f;
    if (route.local_ids[i] >= 0) {
      const std::int64_t row = route.layout == Layout::packed ? i : row_here(route, n, k);
      if (row >= 0) value = args.values[row];
    }
    args.values_out[i] = value;
  }
}

__global__ void __launch_bounds__(32 * most_copy_warps, 1)
gather_copy_kernel(const __grid_constant__ GatherArgs args, const __grid_constant__ StepContext step,
                   const __grid_constant__ CopyShape shape) {
  extern __shared__ __align__(128) unsigned char memory[];
  if (may_gather(args, step)) {
    if (args.rows_out) copy_rows(shape, memory, PackedRows{args});
    gather_floats(args);
  }
  end_step(step);
}

template <DataType in, DataType out>
__global__ void __launch_bounds__(32 * most_sum_warps, 1)
gather_sum_kernel(const __grid_constant__ GatherArgs args, const __grid_constant__ StepContext step,
                  const __grid_constant__ SumShape shape) {
  extern __shared__ __align__(128) unsigned char memory[];
  if (may_gather(args, step)) {
    SumRows<in, out>::run(shape, memory, LocalSum{args});
    gather_floats(args);
  }
  end_step(step);
}

// The rows of one token, in ascending rank order.
struct TokenSum {
  const ReduceArgs& args;
  const RankPlaces& places;

  __device__ std::int64_t items() const { return args.route.tokens; }

  __device__ int find(std::int64_t t, int lane, const std::byte** sources, float* weights) const {
    const RouteTables& route = args.route;
    int count = 0;
    for (std::int32_t base = 0; base < route.ranks; base += 32) {
      const std::int32_t r = base + lane;
      std::int64_t row = r < route.ranks ? packed_index(route, places, t, r) : -1;
      if (row >= 0 && landing_row(route, places, *args.topology, t, r) < 0) row = -1;
      const unsigned there = __ballot_sync(0xffffffffu, row >= 0);
      if (row >= 0) {
        const int at = count + __popc(there & ((1u << lane) - 1u));
        sources[at] = places.rows[r] + row * places.stride[r];
        if (args.weighted) weights[at] = peer_floats(args.placement.weights[r])[row];
      }
      count += __popc(there);
    }
    if (args.values) bring_values(t, lane);
    return count;
  }
  __device__ std::byte* out(std::int64_t t) const { return args.out + t * args.out_stride; }
  __device__ const std::byte* bias(int which, std::int64_t t) const {
    return args.bias[which] ? args.bias[which] + t * args.bias_stride[which] : nullptr;
  }

  __device__ const float* peer_floats(const Place& place) const {
    return reinterpret_cast<const float*>(address_of(*args.addresses, place));
  }
  __device__ void bring_values(std::int64_t t, int lane) const {
    const RouteTables& route = args.route;
    for (std::int32_t k = lane; k < route.topk; k += 32) {
      const std::int64_t slot = t * route.topk + k;
      const std::int32_t e = route.expert_of[slot];
      const std::int32_t r = e < 0 ? -1 : args.topology->owner_of(e);
      const std::int64_t row = e < 0 ? -1 : summed_row(route, t, r);
      args.values[slot] = row < 0 ? 0.0f : peer_floats(args.placement.values[r])[row * route.topk + k];
    }
  }
};

__device__ void add_lateness(const ReduceArgs& args, bool moves) {
  for (int r = threadIdx.x; moves && args.waited && r < args.route.ranks; r += blockDim.x) {
    args.waited[r] += args.placement.lateness_ns[r];
  }
}

template <DataType in, DataType out>
__global__ void __launch_bounds__(32 * most_sum_warps, 1)
reduce_kernel(const __grid_constant__ ReduceArgs args, const __grid_constant__ AgreeArgs agree, bool agrees, const __grid_constant__ StepContext step,
              const __grid_constant__ SumShape shape) {
  extern __shared__ __align__(128) unsigned char memory[];
  const bool moves = may_move(agree, agrees, step);
  __shared__ RankPlaces places;
  if (moves) {
    places.fill(args.route, *args.addresses, args.placement, 0);
    SumRows<in, out>::run(shape, memory, TokenSum{args, places});
  }
  end_step(step, [&] { add_lateness(args, moves); });
}

// Tokens with one row at most, which is their sum: it needs no registers but for what 0 + x makes of -0 and NaN.
template <DataType type>
struct TokenRow {
  static constexpr int shrink = 1;
  static constexpr int width = 16 / static_cast<int>(size_of(type));
  TokenSum sum;

  __device__ std::int64_t rows() const { return sum.items(); }
  __device__ int find(Item item, int lane, Run* runs, const std::byte** source) const {
    const std::int64_t t = item.first;
    const int count = sum.find(t, lane, source, nullptr);
    if (lane == 0) runs[0] = Run(t);
    for (std::int64_t i = lane; count == 0 && i < sum.args.elements / width; i += 32) {
      reinterpret_cast<uint4*>(sum.out(t))[i] = uint4{0, 0, 0, 0};
    }
    return count;
  }
  __device__ std::byte* to(Run run) const { return sum.out(run.row()); }
  struct Held {};
  __device__ Held bring(Item, int) const { return {}; }
  __device__ void beside(Item, const Run*, int, Held, int) const {}

  __device__ void change(std::int64_t, std::int64_t, unsigned char* bytes, std::uint32_t count, int lane) const {
#pragma unroll(type == DataType::fp32 ? 2 : 4)
    for (std::uint32_t at = 16 * static_cast<std::uint32_t>(lane); at < count; at += 512) {
      Vector<type, width> x, y;
      x.read(bytes + at);
      y = x;
      y.add_zero();
      if (y == x) continue;
      y.mend_nans();
      y.write(bytes + at);
    }
  }
};

template <DataType type>
__global__ void __launch_bounds__(32 * most_copy_warps, 1)
carry_kernel(const __grid_constant__ ReduceArgs args, const __grid_constant__ AgreeArgs agree, bool agrees, const __grid_constant__ StepContext step,
             const __grid_constant__ CopyShape shape) {
  extern __shared__ __align__(128) unsigned char memory[];
  const bool moves = may_move(agree, agrees, step);
  __shared__ RankPlaces places;
  if (moves) {
    places.fill(args.route, *args.addresses, args.placement, 0);
    copy_rows(shape, memory, TokenRow<type>{{args, places}});
  }
  end_step(step, [&] { add_lateness(args, moves); });
}

// Calls with.template operator()<in, out>() for the pairs that occur: equal types, and FP32 sums rounded home.
template <class With>
cudaError_t with_types(DataType in, DataType out, With&& with) {
  using enum DataType;
  if (in == bf16) return out == fp32 ? with.template operator()<bf16, fp32>() : with.template operator()<bf16, bf16>();
  if (in == fp16) return out == fp32 ? with.template operator()<fp16, fp32>() : with.template operator()<fp16, fp16>();
  if (out == bf16) return with.template operator()<fp32, bf16>();
  if (out == fp16) return with.template operator()<fp32, fp16>();
  return with.template operator()<fp32, fp32>();
}

}  // namespace

cudaError_t launch(const GatherArgs& args, const StepContext& step, const Launch& how) {
  if (args.route.layout == Layout::packed || !args.rows_out) {
    const CopyShape shape = copy_shape(args.elements * size_of(args.dtype), 1);
    const unsigned blocks = blocks_for(how, args.route.packed_limit, shape.warps);
    return start(gather_copy_kernel, {blocks, shape.threads(), ring_shared_bytes}, how, args, step, shape);
  }
  return with_types(args.dtype, args.sum_type, [&]<DataType in, DataType out>() {
    SumShape shape = sum_shape(args.elements, in, out, args.route.topk);
    shape.weighted = args.weights != nullptr;
    const unsigned blocks = blocks_for(how, args.route.packed_limit, shape.warps);
    return start(gather_sum_kernel<in, out>, {blocks, shape.threads(), sum_shared_bytes}, how, args, step, shape);
  });
}

cudaError_t launch(const ReduceArgs& args, const StepContext& step, const Launch& how) {
  const bool one_row = args.route.ranks == 1 || args.route.topk == 1;
  if (one_row && args.in_type == args.out_type && !args.weighted && !args.bias[0]) {
    const CopyShape shape = copy_shape(args.elements * size_of(args.in_type), 1);
    const Grid grid{blocks_for(how, args.route.tokens, shape.warps), shape.threads(), ring_shared_bytes};
    if (args.in_type == DataType::bf16) return start(carry_kernel<DataType::bf16>, grid, how, args, agree_of(how), how.agree != nullptr, step, shape);
    if (args.in_type == DataType::fp16) return start(carry_kernel<DataType::fp16>, grid, how, args, agree_of(how), how.agree != nullptr, step, shape);
    return start(carry_kernel<DataType::fp32>, grid, how, args, agree_of(how), how.agree != nullptr, step, shape);
  }
  return with_types(args.in_type, args.out_type, [&]<DataType in, DataType out>() {
    SumShape shape = sum_shape(args.elements, in, out, args.route.ranks);
    shape.weighted = args.weighted;
    shape.biased = args.bias[0] != nullptr;
    const unsigned blocks = blocks_for(how, args.route.tokens, shape.warps);
    return start(reduce_kernel<in, out>, {blocks, shape.threads(), sum_shared_bytes}, how, args, agree_of(how), how.agree != nullptr, step, shape);
  });
}

cudaError_t prepare_combine() {
  cudaError_t error = prepare_all(ring_shared_bytes, gather_copy_kernel, carry_kernel<DataType::bf16>,
                                  carry_kernel<DataType::fp16>, carry_kernel<DataType::fp32>);
  for (const DataType in : {DataType::bf16, DataType::fp16, DataType::fp32}) {
    for (const DataType out : {DataType::bf16, DataType::fp16, DataType::fp32}) {
      const bool occurs = in == out || in == DataType::fp32 || out == DataType::fp32;
      if (error != cudaSuccess || !occurs) continue;
      error = with_types(in, out, [&]<DataType from, DataType to>() {
        return prepare_all(sum_shared_bytes, gather_sum_kernel<from, to>, reduce_kernel<from, to>);
      });
    }
  }
  return error;
}

}  // namespace sluice::cuda
