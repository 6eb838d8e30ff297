// move: rows, scales, local ids and weights of this rank's tokens to their final places.
#include <cuda_fp8.h>
#include <cuda_runtime.h>


#include "core/numbers.h"
#include "core/routing.h"
#include "engine/cuda/agree.cuh"
#include "engine/cuda/copy_rows.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/start.cuh"
#include "engine/cuda/block.cuh"
#include "engine/cuda/vectors.cuh"

namespace sluice::cuda {

using namespace core;

namespace {

// What else lies at each rank.
struct MovePlaces : RankPlaces {
  std::int32_t* ids[limits::ranks_per_node];
  float* weights[limits::ranks_per_node];
  std::byte* scales[limits::ranks_per_node];
  std::int64_t scale_stride[limits::ranks_per_node];
  std::int32_t first_expert[limits::ranks_per_node + 1];

  // By all threads of the block.
  __device__ void fill(const MoveArgs& args) {
    for (int r = threadIdx.x; r < args.route.ranks; r += blockDim.x) {
      ids[r] = reinterpret_cast<std::int32_t*>(address_of(*args.addresses, args.placement.ids[r]));
      weights[r] = reinterpret_cast<float*>(address_of(*args.addresses, args.placement.weights[r]));
      scales[r] = address_of(*args.addresses, args.placement.scales[r]);
      scale_stride[r] = args.placement.scale_stride[r];
    }
    for (int r = threadIdx.x; r <= args.route.ranks; r += blockDim.x) first_expert[r] = args.topology->first_expert[r];
    RankPlaces::fill(args.route, *args.addresses, args.placement, args.row_bytes);
  }
};

struct MoveShape {
  CopyShape copy;
  bool plain_scales = false;  // those of an item are at most 32 x 16 bytes, one behind the other on both sides
};

// Tokens, by a warp: where their rows go, and what goes beside them.
struct TokenWork {
  const MoveArgs& args;
  const MovePlaces& places;
  bool plain_scales;

  __device__ std::int64_t rows() const { return args.route.tokens; }

  // A lane per rank. Tokens that follow each other on their way to a rank often land one behind the other.
  __device__ int find(Item item, int lane, Run* runs, const std::byte** source) const {
    int count = 0;
    for (std::int32_t base = 0; base < args.route.ranks; base += 32) {
      const std::int32_t r = base + lane;
      std::int64_t before = -1;  // the row of the token before
      Run* run = nullptr;
      for (int i = 0; i < item.rows; ++i) {
        const std::int64_t row = r < args.route.ranks ? landing_row(args.route, places, *args.topology, item.first + i, r) : -1;
        const bool follows = before >= 0 && row == before + 1, begins = row >= 0 && !follows;
        const unsigned beginning = __ballot_sync(0xffffffffu, begins);
        if (begins) *(run = runs + count + __popc(beginning & ((1u << lane) - 1u))) = Run(row, r, i);
        if (follows) run->add_row();
        before = row;
        count += __popc(beginning);
      }
    }
    if (lane == 0) *source = args.rows + item.first * args.row_stride;
    return count;
  }
  __device__ std::byte* to(Run run) const { return places.rows[run.rank()] + run.row() * places.stride[run.rank()]; }

  struct Held {
    uint4 scales;
  };
  __device__ Held bring(Item item, int lane) const {
    const std::int64_t bytes = args.scale_row_stride;
    if (!plain_scales || 16 * lane >= item.rows * bytes) return {};
    return {reinterpret_cast<const uint4*>(args.scales + item.first * bytes)[lane]};
  }

  // Local ids, weights and scales: a few hundred bytes per (token, rank).
  __device__ void beside(Item item, const Run* runs, int count, const Held& held, int lane) const {
    if (args.makes_route || args.weights) {
      if (args.route.layout == Layout::packed && args.route.topk <= 32) send_choices(item, runs, count, lane);
      else send_all_choices(item, lane);
    }
    if (plain_scales) return send_scales(runs, count, held, lane);
    if (args.scale_shape.count == 0 || args.quantise != Quantise::none) return;
    for (int q = 0; q < count; ++q) {
      for (int i = 0; i < runs[q].rows(); ++i) copy_scales_of(item.first + runs[q].first() + i, runs[q].rank(), runs[q].row() + i, lane);
    }
  }

  __device__ void send_choice(std::int64_t t, std::int32_t k, std::int32_t r, std::int64_t packed) const {
    const std::int64_t slot = t * args.route.topk + k, at = packed * args.route.topk + k;
    const std::int32_t expert = args.route.expert_of[slot], first = places.first_expert[r];
    const bool here = expert >= first && expert < places.first_expert[r + 1];
    if (args.makes_route) places.ids[r][at] = here ? expert - first : -1;
    if (args.weights) places.weights[r][at] = here ? args.weights[slot] : 0.0f;
  }

  // Packed rows, some at once: a lane per choice.
  __device__ void send_choices(Item item, const Run* runs, int count, int lane) const {
    const int topk = args.route.topk, at_once = 32 / topk, k = lane % topk;
    const int first = lane / topk;
    for (int i = first; first < at_once && i < count * item.rows; i += at_once) {
      const Run run = runs[i / item.rows];
      const int row = i % item.rows;
      if (row < run.rows()) send_choice(item.first + run.first() + row, k, run.rank(), run.row() + row);
    }
  }

  // In other layouts they go where no row goes, too.
  __device__ void send_all_choices(Item item, int lane) const {
    for (std::int64_t t = item.first; t < item.first + item.rows; ++t) {
      for (std::int32_t r = 0; r < args.route.ranks; ++r) {
        const std::int64_t packed = packed_index(args.route, places, t, r);
        if (packed < 0 || (args.route.layout == Layout::packed && packed >= places.limit[r])) continue;
        for (std::int32_t k = lane; k < args.route.topk; k += 32) send_choice(t, k, r, packed);
      }
    }
  }

  __device__ void send_scales(const Run* runs, int count, const Held& held, int lane) const {
    const int bytes = static_cast<int>(args.scale_row_stride);
    for (int q = 0; q < count; ++q) {
      const Run run = runs[q];
      const int at = 16 * lane - run.first() * bytes;
      if (at < 0 || at >= run.rows() * bytes) continue;
      *reinterpret_cast<uint4*>(places.scales[run.rank()] + run.row() * bytes + at) = held.scales;
    }
  }

  __device__ void copy_scales_of(std::int64_t t, std::int32_t r, std::int64_t row, int lane) const {
    copy_scales(args.scale_shape, places.scales[r], row, places.scale_stride[r], args.scales + t * args.scale_row_stride,
                args.scale_stride, lane);
  }
};

__global__ void __launch_bounds__(32 * most_copy_warps, 1)
move_kernel(const __grid_constant__ MoveArgs args, const __grid_constant__ AgreeArgs agree, bool agrees, const __grid_constant__ StepContext step,
            const __grid_constant__ MoveShape shape) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ MovePlaces places;
  if (may_move(agree, agrees, step)) {
    places.fill(args);
    copy_rows(shape.copy, memory, TokenWork{args, places, shape.plain_scales});
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

  __device__ void beside(Item item, const Run* runs, int count, const Held& held, int lane) const {
    TokenWork::beside(item, runs, count, held, lane);
    const std::int64_t t = item.first;
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
        std::byte* const at = places.scales[base + from] + args.scale_shape.offset(to, first + lane, places.scale_stride[base + from]);
        if (by_powers()) *reinterpret_cast<std::uint8_t*>(at) = exponent;
        else *reinterpret_cast<float*>(at) = scale;
      }
    }
  }
};

constexpr int quantise_warps = 20;  // as many as have registers

template <DataType type>
__global__ void __launch_bounds__(32 * quantise_warps, 1)
quantise_kernel(const __grid_constant__ MoveArgs args, const __grid_constant__ AgreeArgs agree, bool agrees, const __grid_constant__ StepContext step,
                const __grid_constant__ CopyShape shape) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ MovePlaces places;
  if (may_move(agree, agrees, step)) {
    places.fill(args);
    copy_rows(shape, memory, QuantiseWork<type>{{args, places, false}});
  }
  end_step(step);
}

template <DataType type>
cudaError_t launch_quantise(const MoveArgs& args, const StepContext& step, const Launch& how) {
  using Work = QuantiseWork<type>;
  const CopyShape shape = copy_shape(args.elements * Work::shrink, args.route.ranks, quantise_warps, Work::unit);
  return start(quantise_kernel<type>, {blocks_for(how, args.route.tokens, shape.warps), shape.threads(), ring_shared_bytes}, how, args, agree_of(how), how.agree != nullptr, step, shape);
}

MoveShape move_shape(const MoveArgs& args, const Launch& how) {
  const ScaleShape& scales = args.scale_shape;
  const std::int64_t bytes = scales.count * scales.size;
  constexpr std::int64_t most = 32 * 16;
  MoveShape shape;
  shape.plain_scales = bytes > 0 && bytes <= most && bytes % 16 == 0 && scales.layout == ScaleLayout::row &&
                       args.scale_stride == scales.size && args.scale_row_stride == bytes &&
                       reinterpret_cast<std::uintptr_t>(args.scales) % 16 == 0;
  int at_once = 1;
  if (args.row_stride == args.row_bytes) at_once = rows_that_go_at_once(args.row_bytes, args.route.tokens, args.route.ranks, how.num_sms);
  while (shape.plain_scales && at_once * bytes > most) at_once /= 2;
  shape.copy = copy_shape(args.row_bytes, args.route.ranks, most_copy_warps, 16, at_once);
  return shape;
}

}  // namespace

cudaError_t launch(const MoveArgs& args, const StepContext& step, const Launch& how) {
  if (args.quantise == Quantise::none) {
    const MoveShape shape = move_shape(args, how);
    const unsigned blocks = blocks_for(how, args.route.tokens, shape.copy.warps * shape.copy.rows_at_once);
    return start(move_kernel, {blocks, shape.copy.threads(), ring_shared_bytes}, how, args, agree_of(how), how.agree != nullptr, step, shape);
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
