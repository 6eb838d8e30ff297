// move: rows, scales, local ids and weights of this rank's tokens to their final places.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/numbers.h"
#include "core/routing.h"
#include "engine/cuda/copy_rows.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/start.cuh"
#include "engine/cuda/block.cuh"

namespace sluice::cuda {

using namespace core;

namespace {

// One token, by a warp: where it goes, and what goes beside its row.
struct TokenWork {
  const MoveArgs& args;
  const RankPlaces& places;

  __device__ std::int64_t items() const { return args.route.tokens; }

  __device__ int find(std::int64_t t, int lane, std::byte** destinations, const std::byte** source) const {
    int count = 0;
    for (std::int32_t base = 0; base < args.route.ranks; base += 32) {
      const std::int32_t r = base + lane;
      const std::int64_t row = r < args.route.ranks ? landing_row(args.route, places, *args.topology, t, r) : -1;
      const unsigned there = __ballot_sync(0xffffffffu, row >= 0);
      if (row >= 0) {
        destinations[count + __popc(there & ((1u << lane) - 1u))] =
            places.rows[r] + row * places.stride[r];
      }
      count += __popc(there);
    }
    if (lane == 0) *source = args.rows + t * args.row_stride;
    return count;
  }

  // Local ids, weights and scales: a few hundred bytes per (token, rank).
  __device__ void beside(std::int64_t t, int lane) const {
    const bool scales = args.scale_shape.count > 0 && args.quantise == Quantise::none;
    if (!args.makes_route && !args.weights && !scales) return;
    for (std::int32_t r = 0; r < args.route.ranks; ++r) {
      const std::int64_t packed = packed_index(args.route, places, t, r);
      if (packed < 0) continue;
      if (args.route.layout != Layout::packed || packed < places.limit[r]) send_choices(t, r, packed, lane);
      if (scales) send_scales(t, r, lane);
    }
  }

  __device__ void send_choices(std::int64_t t, std::int32_t r, std::int64_t packed, int lane) const {
    const std::int32_t topk = args.route.topk;
    auto* const ids = reinterpret_cast<std::int32_t*>(address_of(*args.addresses, args.placement.ids[r]));
    auto* const weights = reinterpret_cast<float*>(address_of(*args.addresses, args.placement.weights[r]));
    for (std::int32_t k = lane; k < topk; k += 32) {
      const std::int32_t expert = local_choice(args.route, *args.topology, t, k, r);
      if (args.makes_route) ids[packed * topk + k] = expert;
      if (args.weights) weights[packed * topk + k] = expert < 0 ? 0.0f : args.weights[t * topk + k];
    }
  }

  __device__ void send_scales(std::int64_t t, std::int32_t r, int lane) const {
    const std::int64_t row = landing_row(args.route, places, *args.topology, t, r);
    if (row < 0) return;
    std::byte* const to = address_of(*args.addresses, args.placement.scales[r]);
    copy_scales(args.scale_shape, to, row, args.placement.scale_stride[r], args.scales + t * args.scale_row_stride,
                args.scale_stride, lane);
  }
};

__global__ void __launch_bounds__(32 * most_copy_warps, 1)
move_kernel(const __grid_constant__ MoveArgs args, const __grid_constant__ StepContext step, const __grid_constant__ RingShape shape) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ RankPlaces places;
  if (may_move(step)) {
    places.fill(args.route, *args.addresses, args.placement, args.row_bytes);
    copy_rows(shape, memory, TokenWork{args, places});
  }
  end_step(step);
}

// Quantising on the way: a warp per token, 128 elements (one group) at a time, four per lane. The bytes go
// to every destination from registers.
template <DataType type>
struct QuantiseWork {
  using Bits = typename numbers::Number<type>::Bits;
  const MoveArgs& args;
  const RankPlaces& places;

  __device__ void token(std::int64_t t, int lane) const {
    TokenWork{args, places}.beside(t, lane);
    const auto* const row = reinterpret_cast<const Bits*>(args.rows + t * args.row_stride);
    const std::int64_t groups = (args.elements + numbers::quantise_group - 1) / numbers::quantise_group;
    for (std::int64_t g = 0; g < groups; ++g) group(t, g, row, lane);
    if (args.quantise == Quantise::e4m3_power_of_two) pad_scales(t, groups, lane);
  }

  __device__ void group(std::int64_t t, std::int64_t g, const Bits* row, int lane) const {
    // Rows are multiples of 16 bytes quantised, so four elements are all there or all missing.
    const std::int64_t first = g * numbers::quantise_group + 4 * lane;
    float x[4] = {};
    const bool inside = first < args.elements;
    float a = numbers::smallest_largest;
    for (int i = 0; inside && i < 4; ++i) {
      x[i] = numbers::Number<type>::to_float(row[first + i]);
      a = numbers::larger_finite(a, x[i]);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      a = numbers::larger_finite(a, __shfl_xor_sync(0xffffffffu, a, distance));
    }
    const bool power = args.quantise == Quantise::e4m3_power_of_two;
    const std::uint8_t exponent = numbers::quantise_exponent(a);
    const float scale = power ? numbers::scale_of_exponent(exponent) : numbers::quantise_scale(a);
    const float factor = numbers::quantise_factor(a);
    std::uint32_t quantised = 0;
    for (int i = 0; inside && i < 4; ++i) {
      const std::uint8_t q = power ? numbers::quantise_by_scale(x[i], scale) : numbers::quantise(x[i], factor);
      quantised |= static_cast<std::uint32_t>(q) << (8 * i);
    }
    for_each_destination(t, [&](std::int32_t r, std::int64_t to) {
      std::byte* const out = places.rows[r] + to * args.row_bytes;
      if (inside) *reinterpret_cast<std::uint32_t*>(out + first) = quantised;
      if (lane != 0) return;
      std::byte* const at = scale_at(r, to, g);
      if (power) *reinterpret_cast<std::uint8_t*>(at) = exponent;
      else *reinterpret_cast<float*>(at) = scale;
    });
  }

  __device__ void pad_scales(std::int64_t t, std::int64_t groups, int lane) const {
    for_each_destination(t, [&](std::int32_t r, std::int64_t to) {
      for (std::int64_t s = groups + lane; s < args.scale_shape.count; s += 32) *scale_at(r, to, s) = std::byte{0};
    });
  }

  __device__ std::byte* scale_at(std::int32_t r, std::int64_t row, std::int64_t s) const {
    return address_of(*args.addresses, args.placement.scales[r]) +
           args.scale_shape.offset(row, s, args.placement.scale_stride[r]);
  }

  template <class Use>
  __device__ void for_each_destination(std::int64_t t, Use&& use) const {
    for (std::int32_t r = 0; r < args.route.ranks; ++r) {
      const std::int64_t row = landing_row(args.route, places, *args.topology, t, r);
      if (row >= 0) use(r, row);
    }
  }
};

constexpr int quantise_threads = 512;

template <DataType type>
__global__ void __launch_bounds__(quantise_threads)
quantise_kernel(const __grid_constant__ MoveArgs args, const __grid_constant__ StepContext step) {
  __shared__ RankPlaces places;
  if (may_move(step)) {
    places.fill(args.route, *args.addresses, args.placement, args.row_bytes);
    const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (quantise_threads / 32);
    const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(quantise_threads / 32) + threadIdx.x / 32;
    const QuantiseWork<type> work{args, places};
    for (std::int64_t t = first; t < args.route.tokens; t += warps) work.token(t, static_cast<int>(threadIdx.x) % 32);
  }
  end_step(step);
}

}  // namespace

cudaError_t launch(const MoveArgs& args, const StepContext& step, const Launch& how) {
  const std::int64_t tokens = std::max<std::int64_t>(args.route.tokens, 1);
  if (args.quantise == Quantise::none) {
    const CopyShape shape = copy_shape(args.row_bytes, args.route.ranks);
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(how.num_sms, (tokens + shape.warps - 1) / shape.warps));
    return start(move_kernel, {blocks, shape.threads(), ring_shared_bytes}, how, args, step, shape.ring);
  }
  constexpr int warps = quantise_threads / 32;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(how.num_sms, (tokens + warps - 1) / warps));
  if (args.dtype == DataType::bf16) return start(quantise_kernel<DataType::bf16>, {blocks, quantise_threads, 0}, how, args, step);
  if (args.dtype == DataType::fp16) return start(quantise_kernel<DataType::fp16>, {blocks, quantise_threads, 0}, how, args, step);
  return start(quantise_kernel<DataType::fp32>, {blocks, quantise_threads, 0}, how, args, step);
}

cudaError_t prepare_move() {
  const cudaError_t error = prepare_all(ring_shared_bytes, move_kernel);
  if (error != cudaSuccess) return error;
  return prepare_all(0, quantise_kernel<DataType::bf16>, quantise_kernel<DataType::fp16>, quantise_kernel<DataType::fp32>);
}

}  // namespace sluice::cuda
