// move: rows, scales, local ids and weights of this rank's tokens to their final places.
#include <cuda_fp8.h>
#include <cuda_runtime.h>


#include "core/numbers.h"
#include "core/routing.h"
#include "engine/cuda/copy_rows.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/start.cuh"
#include "engine/cuda/block.cuh"
#include "engine/cuda/vectors.cuh"

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

// Quantising on the way: each lane takes 16 bytes at a time, so a group of 128 elements lies in half a warp, or in a
// whole one when they are FP32. A piece of a row is a multiple of `unit` bytes, which are whole groups.
template <DataType type>
struct QuantiseWork : TokenWork {
  static constexpr int shrink = static_cast<int>(size_of(type));
  static constexpr int width = 16 / shrink;  // elements of a lane
  static constexpr int lanes = numbers::quantise_group / width;
  static constexpr int groups_at_once = 32 / lanes;
  static constexpr std::int64_t unit = 32 * 16;

  __device__ void beside(std::int64_t t, int lane) const {
    TokenWork::beside(t, lane);
    const auto groups = static_cast<std::int32_t>(numbers::quantise_groups(args.elements));
    // Exponents are padded, with fewer than four zeros.
    write_group_scales(t, groups, static_cast<std::int32_t>(args.scale_shape.count) - groups, 0.0f, 0, lane);
  }

  // What is stored of a vector lies before all that later vectors are read from.
  __device__ void change(std::int64_t t, std::int64_t first, unsigned char* bytes, std::uint32_t count, int lane) const {
    const int vectors = static_cast<int>(count / 16);
    std::int32_t group = static_cast<std::int32_t>(first / shrink / numbers::quantise_group);
    float largest = 0.0f;  // of the group whose scale this lane sends
    int known = 0;         // groups whose scales are to be sent
    for (int v = 0; v < vectors; v += 32) {
      Vector<type, width> raw{};
      if (v + lane < vectors) raw.read(bytes + 16 * (v + lane));
      float x[width];
      raw.unpack(x);
      const float a = largest_of_group(x);
      const std::uint64_t quantised = quantise(x, a);
      __syncwarp();
      if (v + lane < vectors) store(bytes + width * (v + lane), quantised);
      const float other = __shfl_sync(all_lanes, a, lane % groups_at_once * lanes);
      if (lane / groups_at_once == known / groups_at_once) largest = other;
      known += groups_at_once;
      if (known < 32 && v + 32 < vectors) continue;
      const int left = (vectors - v + lanes - 1) / lanes;  // in the last vectors there may be one group only
      const int groups = left < groups_at_once ? known - groups_at_once + left : known;
      send_group_scales(t, group, groups, largest, lane);
      group += groups;
      known = 0;
    }
  }

 private:
  static constexpr unsigned all_lanes = 0xffffffffu;

  __device__ bool by_powers() const { return args.quantise == Quantise::e4m3_power_of_two; }

  // core::larger_finite of them all. The maximum of floats ignores a NaN, but not an infinity.
  __device__ float largest_of_group(const float (&x)[width]) const {
    float a = numbers::smallest_largest;
#pragma unroll
    for (int i = 0; i < width; ++i) a = fmaxf(a, fabsf(x[i]));
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) a = fmaxf(a, __shfl_xor_sync(all_lanes, a, distance));
    if (!__any_sync(all_lanes, numbers::bits_of(a) == numbers::fp32_infinity)) return a;
    a = numbers::smallest_largest;
    for (int i = 0; i < width; ++i) a = numbers::larger_finite(a, x[i]);
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      a = numbers::larger_finite(a, __shfl_xor_sync(all_lanes, a, distance));
    }
    return a;
  }

  // numbers::quantise and numbers::quantise_by_scale, by the hardware's conversion, which gives the same bits.
  __device__ std::uint64_t quantise(const float (&x)[width], float a) const {
    const float factor = by_powers() ? numbers::factor_of_exponent(numbers::quantise_exponent(a)) : numbers::quantise_factor(a);
    std::uint64_t bytes = 0;
#pragma unroll
    for (int i = 0; i < width; i += 2) {
      const float2 pair{numbers::product(x[i], factor), numbers::product(x[i + 1], factor)};
      bytes |= static_cast<std::uint64_t>(__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3)) << (8 * i);
    }
    return bytes;
  }

  __device__ static void store(unsigned char* at, std::uint64_t bytes) {
    if constexpr (width == 8) *reinterpret_cast<std::uint64_t*>(at) = bytes;
    else *reinterpret_cast<std::uint32_t*>(at) = static_cast<std::uint32_t>(bytes);
  }

  // Scales `first` and on of a token's row, one per lane, at most 32.
  __device__ void send_group_scales(std::int64_t t, std::int32_t first, int count, float largest, int lane) const {
    write_group_scales(t, first, count, numbers::quantise_scale(largest), numbers::quantise_exponent(largest), lane);
  }
  __device__ void write_group_scales(std::int64_t t, std::int32_t first, int count, float scale, std::uint8_t exponent, int lane) const {
    for (std::int32_t base = 0; count > 0 && base < args.route.ranks; base += 32) {
      const std::int32_t r = base + lane;
      const std::int64_t row = r < args.route.ranks ? landing_row(args.route, places, *args.topology, t, r) : -1;
      for (unsigned there = __ballot_sync(all_lanes, row >= 0); there != 0; there &= there - 1) {
        const int from = __ffs(static_cast<int>(there)) - 1;
        const std::int64_t to = __shfl_sync(all_lanes, row, from);
        if (lane >= count) continue;
        std::byte* const at = address_of(*args.addresses, args.placement.scales[base + from]) +
                              args.scale_shape.offset(to, first + lane, args.placement.scale_stride[base + from]);
        if (by_powers()) *reinterpret_cast<std::uint8_t*>(at) = exponent;
        else *reinterpret_cast<float*>(at) = scale;
      }
    }
  }
};

constexpr int quantise_warps = 20;  // as many as have registers

template <DataType type>
__global__ void __launch_bounds__(32 * quantise_warps, 1)
quantise_kernel(const __grid_constant__ MoveArgs args, const __grid_constant__ StepContext step, const __grid_constant__ RingShape shape) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ RankPlaces places;
  if (may_move(step)) {
    places.fill(args.route, *args.addresses, args.placement, args.row_bytes);
    copy_rows(shape, memory, QuantiseWork<type>{{args, places}});
  }
  end_step(step);
}

template <DataType type>
cudaError_t launch_quantise(const MoveArgs& args, const StepContext& step, const Launch& how) {
  using Work = QuantiseWork<type>;
  const CopyShape shape = copy_shape(args.elements * Work::shrink, args.route.ranks, quantise_warps, Work::unit);
  return start(quantise_kernel<type>, {blocks_for(how, args.route.tokens, shape.warps), shape.threads(), ring_shared_bytes}, how, args, step, shape.ring);
}

}  // namespace

cudaError_t launch(const MoveArgs& args, const StepContext& step, const Launch& how) {
  if (args.quantise == Quantise::none) {
    const CopyShape shape = copy_shape(args.row_bytes, args.route.ranks);
    return start(move_kernel, {blocks_for(how, args.route.tokens, shape.warps), shape.threads(), ring_shared_bytes}, how, args, step, shape.ring);
  }
  if (args.dtype == DataType::bf16) return launch_quantise<DataType::bf16>(args, step, how);
  if (args.dtype == DataType::fp16) return launch_quantise<DataType::fp16>(args, step, how);
  return launch_quantise<DataType::fp32>(args, step, how);
}

cudaError_t prepare_move() {
  return prepare_all(ring_shared_bytes, move_kernel, quantise_kernel<DataType::bf16>, quantise_kernel<DataType::fp16>,
                     quantise_kernel<DataType::fp32>);
}

}  // namespace sluice::cuda
