// Sums of rows: a warp per item keeps up to 7 vectors of 16 bytes per lane in FP32 registers and adds
// the item's rows in order (contract V3), straight from where they lie. Enough loads are in flight that no ring
// is needed (bench/probes/one_sm: plain loads exceed what an SM can store).
//
// A Work says what to add:
//   std::int64_t items() const
//   int find(std::int64_t item, int lane, const std::byte** rows, float* weights) const
//       by a whole warp: writes the rows in the order of the sum, and their weights; returns how many
//   std::byte* out(std::int64_t item) const
//   const std::byte* bias(int which, std::int64_t item) const     of the type of out; null: none
#pragma once

#include "core/numbers.h"
#include "engine/cuda/block.cuh"
#include "engine/cuda/step.cuh"

namespace sluice::cuda {

inline constexpr int sum_threads = 512;
// Vectors of the output in flight per lane; FP32 rows that become 16-bit sums take twice the registers.
constexpr int sum_unroll_of(DataType in, DataType out) { return size_of(in) > size_of(out) ? 4 : 7; }

struct SumShape {
  std::int64_t vectors = 0;         // of 16 bytes of the output, in a row
  std::int32_t vectors_at_once = 1; // per lane, at most sum_unroll_of
  std::int32_t most_rows = 1;
  bool weighted = false;

  std::int64_t shared_bytes() const { return static_cast<std::int64_t>(most_rows) * 12 * (sum_threads / 32); }
};

inline SumShape sum_shape(std::int64_t elements, DataType in, DataType out, int most_rows, bool weighted) {
  SumShape shape;
  shape.vectors = elements * size_of(out) / 16;
  shape.most_rows = most_rows;
  shape.weighted = weighted;
  // Equal turns: 28 vectors per lane are 4 turns of 7, not 3 of 8 and one of 4.
  const std::int64_t per_lane = (shape.vectors + 31) / 32;
  const std::int64_t most = sum_unroll_of(in, out), turns = (per_lane + most - 1) / most;
  shape.vectors_at_once = static_cast<std::int32_t>(turns == 0 ? 1 : (per_lane + turns - 1) / turns);
  return shape;
}

template <DataType in_type, DataType out_type>
class SumRows {
  using In = typename numbers::Number<in_type>::Bits;
  using Out = typename numbers::Number<out_type>::Bits;
  static constexpr int sum_unroll = sum_unroll_of(in_type, out_type);
  static constexpr int width = 16 / static_cast<int>(sizeof(Out));  // elements of a vector

 public:
  __device__ SumRows(const SumShape& shape, unsigned char* memory) : shape_(shape) {
    const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
    rows_ = reinterpret_cast<const std::byte**>(memory) + warp * shape.most_rows;
    weights_ = reinterpret_cast<float*>(memory + static_cast<std::int64_t>(warps) * shape.most_rows * 8) + warp * shape.most_rows;
  }

  // By all warps of the grid.
  template <class Work>
  __device__ void run(const Work& work) {
    const int lane = lane_of_thread();
    const std::int64_t items = work.items();
    for (std::int64_t item = warp_of_grid(); item < items; item += warps_of_grid()) {
      const int count = work.find(item, lane, rows_, weights_);
      __syncwarp();
      for (std::int64_t first = 0; first < shape_.vectors; first += 32 * shape_.vectors_at_once) {
        turn(work, item, first + lane, count);
      }
      __syncwarp();
    }
  }

 private:
  // One lane's vectors first, first + 32, ... of the row.
  template <class Work>
  __device__ void turn(const Work& work, std::int64_t item, std::int64_t first, int count) const {
    float sums[sum_unroll][width];
    bool inside[sum_unroll];
#pragma unroll
    for (int v = 0; v < sum_unroll; ++v) {
      inside[v] = v < shape_.vectors_at_once && first + 32 * v < shape_.vectors;
#pragma unroll
      for (int i = 0; i < width; ++i) sums[v][i] = 0.0f;
    }
    if (work.bias(0, item) != nullptr) add_bias(sums, inside, work.bias(0, item), first, true);
    if (work.bias(1, item) != nullptr) add_bias(sums, inside, work.bias(1, item), first, false);
    for (int j = 0; j < count; ++j) add_row(sums, inside, rows_[j], first, weights_[j]);
    std::byte* const out = work.out(item);
#pragma unroll
    for (int v = 0; v < sum_unroll; ++v) {
      if (!inside[v]) continue;
      alignas(16) Out x[width];
      round(x, sums[v]);
      *reinterpret_cast<uint4*>(out + (first + 32 * v) * 16) = *reinterpret_cast<uint4*>(x);
    }
  }

  __device__ void add_bias(float (&sums)[sum_unroll][width], const bool (&inside)[sum_unroll], const std::byte* bias,
                           std::int64_t first, bool begins) const {
#pragma unroll
    for (int v = 0; v < sum_unroll; ++v) {
      if (!inside[v]) continue;
      alignas(16) Out x[width];
      *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(bias + (first + 32 * v) * 16);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float value = numbers::Number<out_type>::to_float(x[i]);
        sums[v][i] = begins ? value : numbers::sum(sums[v][i], value);
      }
    }
  }

  // All loads first, so that they are in flight together.
  __device__ void add_row(float (&sums)[sum_unroll][width], const bool (&inside)[sum_unroll], const std::byte* row,
                          std::int64_t first, float weight) const {
    alignas(16) In x[sum_unroll][width];
#pragma unroll
    for (int v = 0; v < sum_unroll; ++v) {
      if (inside[v]) load(x[v], row + (first + 32 * v) * static_cast<std::int64_t>(width * sizeof(In)));
    }
#pragma unroll
    for (int v = 0; v < sum_unroll; ++v) {
      if (!inside[v]) continue;
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float value = numbers::Number<in_type>::to_float(x[v][i]);
        sums[v][i] = numbers::sum(sums[v][i], shape_.weighted ? numbers::product(weight, value) : value);
      }
    }
  }

  // Rows are read once: they need no place in the first cache.
  __device__ static void load(In (&x)[width], const std::byte* at) {
    if constexpr (sizeof(x) % 16 == 0) {
#pragma unroll
      for (unsigned i = 0; i < sizeof(x) / 16; ++i) {
        auto& word = reinterpret_cast<uint4*>(x)[i];
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                     : "l"(at + 16 * i));
      }
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
  const std::byte** rows_;
  float* weights_;
};

}  // namespace sluice::cuda
