// Sums of rows, a warp per item. The rows come through the warp's ring; the FP32 sums of a piece, up to a few
// vectors of each lane, stay in registers while the item's rows are added in order (promise V3).
//
// A Work says what to add:
//   std::int64_t items() const
//   int find(std::int64_t item, int lane, const std::byte** rows, float* weights) const
//       by a whole warp: writes the rows in the order of the sum, and their weights; returns how many
//   std::byte* out(std::int64_t item) const
//   const std::byte* bias(int which, std::int64_t item) const     of the type of out; null: none
#pragma once

#include <algorithm>

#include "core/numbers.h"
#include "engine/cuda/warp_ring.cuh"

namespace sluice::cuda {

// Warps of a block, as many as have registers.
inline constexpr int gather_warps = 16;
inline constexpr int reduce_warps = 20;

// Vectors of 16 bytes of the output per lane; FP32 rows that become 16-bit sums take twice the registers.
constexpr int sum_unroll_of(DataType in, DataType out) { return size_of(in) > size_of(out) ? 2 : 4; }

struct SumShape {
  RingShape ring;
  std::int64_t vectors = 0;          // of 16 bytes of the output, in a row
  std::int32_t vectors_at_once = 1;  // of a lane, in a piece
  std::int32_t most_rows = 1;
  bool weighted = false;
};

inline SumShape sum_shape(std::int64_t elements, DataType in, DataType out, int most_rows, bool weighted, int warps) {
  SumShape shape;
  shape.vectors = elements * size_of(out) / 16;
  shape.most_rows = most_rows;
  shape.weighted = weighted;
  // Equal pieces: 28 vectors per lane are 7 pieces of 4, 20 are 5 of 4, 18 are 5 of at most 4.
  const std::int64_t per_lane = std::max<std::int64_t>(1, (shape.vectors + 31) / 32);
  const std::int64_t most = sum_unroll_of(in, out), pieces = (per_lane + most - 1) / most;
  shape.vectors_at_once = static_cast<std::int32_t>((per_lane + pieces - 1) / pieces);
  const std::int64_t piece_bytes = shape.vectors_at_once * 32 * (16 / size_of(out)) * size_of(in);
  shape.ring = ring_shape(elements * size_of(in), piece_bytes, std::int64_t{12} * most_rows, warps);
  return shape;
}

template <DataType in_type, DataType out_type>
class SumRows {
  using In = typename numbers::Number<in_type>::Bits;
  using Out = typename numbers::Number<out_type>::Bits;
  static constexpr int unroll = sum_unroll_of(in_type, out_type);
  static constexpr int width = 16 / static_cast<int>(sizeof(Out));                    // elements of a vector
  static constexpr std::int64_t vector_bytes = width * static_cast<std::int64_t>(sizeof(In));  // in a row

 public:
  // By all threads of the block.
  template <class Work>
  __device__ static void run(const SumShape& shape, unsigned char* memory, const Work& work) {
    const int lane = lane_of_thread();
    const std::int64_t items = work.items();
    WarpRing ring(shape.ring, memory, items);
    const auto weights = [&](std::int64_t n) { return reinterpret_cast<float*>(ring.entry(n) + 8 * shape.most_rows); };
    const auto find = [&](std::int64_t item, std::int64_t n) { return work.find(item, lane, ring.sources(n), weights(n)); };
    const SumRows rows(shape);
    std::int64_t n = 0;
    for (std::int64_t item = warp_of_grid(); item < items; item += warps_of_grid(), ++n) {
      ring.load_ahead(n, 0, find);
      const int count = ring.count(n);
      for (int piece = 0; piece < shape.ring.pieces; ++piece) {
        Sums sums;
        rows.begin(sums, work, item, piece, lane);
        for (int j = 0; j < count; ++j) {
          if (shape.weighted) rows.template add<true>(sums, ring.wait(), weights(n)[j], lane);
          else rows.template add<false>(sums, ring.wait(), 1.0f, lane);
          __syncwarp();
          ring.pass();
          ring.load_ahead(n, 0, find);
        }
        rows.end(sums, work.out(item), piece, lane);
      }
    }
  }

 private:
  struct Sums {
    float of[unroll][width];
    bool inside[unroll];
  };

  __device__ explicit SumRows(const SumShape& shape) : shape_(shape) {}

  // This lane's v-th vector of a piece is the piece's vector v * 32 + lane.
  template <class Work>
  __device__ void begin(Sums& sums, const Work& work, std::int64_t item, int piece, int lane) const {
    const std::byte* const bias[2] = {work.bias(0, item), work.bias(1, item)};
    const std::int64_t first = static_cast<std::int64_t>(piece) * shape_.vectors_at_once * 32 + lane;
#pragma unroll
    for (int v = 0; v < unroll; ++v) {
      sums.inside[v] = v < shape_.vectors_at_once && first + 32 * v < shape_.vectors;
#pragma unroll
      for (int i = 0; i < width; ++i) sums.of[v][i] = 0.0f;
      if (!sums.inside[v] || bias[0] == nullptr) continue;
      alignas(16) Out x[width];
      *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(bias[0] + (first + 32 * v) * 16);
#pragma unroll
      for (int i = 0; i < width; ++i) sums.of[v][i] = numbers::Number<out_type>::to_float(x[i]);
      if (bias[1] == nullptr) continue;
      *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(bias[1] + (first + 32 * v) * 16);
#pragma unroll
      for (int i = 0; i < width; ++i) sums.of[v][i] = numbers::sum(sums.of[v][i], numbers::Number<out_type>::to_float(x[i]));
    }
  }

  template <bool weighted>
  __device__ void add(Sums& sums, const unsigned char* slot, float weight, int lane) const {
#pragma unroll
    for (int v = 0; v < unroll; ++v) {
      if (!sums.inside[v]) continue;
      alignas(16) In x[width];
      read(x, slot + (32 * v + lane) * vector_bytes);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float value = numbers::Number<in_type>::to_float(x[i]);
        sums.of[v][i] = numbers::sum(sums.of[v][i], weighted ? numbers::product(weight, value) : value);
      }
    }
  }

  __device__ void end(const Sums& sums, std::byte* out, int piece, int lane) const {
    const std::int64_t first = static_cast<std::int64_t>(piece) * shape_.vectors_at_once * 32 + lane;
#pragma unroll
    for (int v = 0; v < unroll; ++v) {
      if (!sums.inside[v]) continue;
      alignas(16) Out x[width];
      round(x, sums.of[v]);
      *reinterpret_cast<uint4*>(out + (first + 32 * v) * 16) = *reinterpret_cast<uint4*>(x);
    }
  }

  __device__ static void read(In (&x)[width], const unsigned char* at) {
    if constexpr (sizeof(x) % 16 == 0) {
#pragma unroll
      for (unsigned i = 0; i < sizeof(x) / 16; ++i) reinterpret_cast<uint4*>(x)[i] = reinterpret_cast<const uint4*>(at)[i];
    } else {
      *reinterpret_cast<uint2*>(x) = *reinterpret_cast<const uint2*>(at);
    }
  }

  // The hardware's conversion of two at once has other bits than ours for a NaN alone. A sum of products with 0
  // is a NaN where one is, and where an infinity is.
  __device__ static void round(Out (&x)[width], const float (&sums)[width]) {
    if constexpr (out_type == DataType::bf16) {
      float odd = 0.0f;
#pragma unroll
      for (int i = 0; i < width; ++i) odd = __fmaf_rn(sums[i], 0.0f, odd);
      if (odd == 0.0f) {
#pragma unroll
        for (int i = 0; i < width; i += 2) {
          std::uint32_t pair;
          asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(sums[i + 1]), "f"(sums[i]));
          *reinterpret_cast<std::uint32_t*>(x + i) = pair;
        }
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < width; ++i) x[i] = numbers::Number<out_type>::from_float(sums[i]);
  }

  const SumShape& shape_;
};

}  // namespace sluice::cuda
