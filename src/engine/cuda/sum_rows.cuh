// Sums of rows, a warp per item. A row is cut into pieces of a few vectors per lane, whose FP32 sums stay in
// registers while the item's rows are added in order (promise V3). Pieces come through a ring of slots that
// belongs to the warp: each lane copies its share some pieces ahead, into the next items too.
//
// The instructions that a piece costs bound this kernel, not its bytes: hence all that is constant here. (A bulk
// load per piece is no cure: an SM starts one every 75 to 110 ns, bench/probes/one_sm.)
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
#include "core/routing.h"
#include "engine/cuda/block.cuh"
#include "engine/cuda/ptx.cuh"
#include "engine/cuda/vectors.cuh"

namespace sluice::cuda {

inline constexpr std::int64_t sum_shared_bytes = 220 * 1024;  // of a block
inline constexpr int most_sum_warps = 20;                     // as many as have registers
inline constexpr int sum_slots = 4;
// Of items in the ring: a slot holds a piece of an item, and the one that is being summed is held too.
inline constexpr int sum_entries = sum_slots + 1;

// Vectors of 16 bytes of the output per lane and piece; FP32 rows that become 16-bit sums take twice the registers.
constexpr int sum_unroll_of(DataType in, DataType out) { return size_of(in) > size_of(out) ? 2 : 4; }
constexpr std::int64_t sum_piece_bytes(DataType in, DataType out) {
  return std::int64_t{32} * sum_unroll_of(in, out) * (16 / size_of(out)) * size_of(in);
}

struct SumShape {
  std::int32_t row_bytes = 0;    // as they come
  std::int32_t vectors = 0;      // of 16 bytes of the output, in a row
  std::int32_t pieces = 1;       // of a row; the last one may be shorter
  std::int32_t most_rows = 1;    // of an item
  std::int32_t entry_bytes = 0;  // where an item's rows lie, their weights, how many
  std::int32_t warp_bytes = 0;
  std::int32_t warps = 1;  // of a block
  bool weighted = false;
  bool biased = false;

  int threads() const { return 32 * warps; }
};

inline SumShape sum_shape(std::int64_t elements, DataType in, DataType out, int most_rows) {
  SumShape shape;
  shape.row_bytes = static_cast<std::int32_t>(elements * size_of(in));
  shape.vectors = static_cast<std::int32_t>(elements * size_of(out) / 16);
  const int piece_vectors = 32 * sum_unroll_of(in, out);
  shape.pieces = (shape.vectors + piece_vectors - 1) / piece_vectors;
  shape.most_rows = most_rows;
  shape.entry_bytes = static_cast<std::int32_t>(core::align_up(12 * most_rows + 4, 16));
  shape.warp_bytes = static_cast<std::int32_t>(sum_slots * sum_piece_bytes(in, out) + sum_entries * shape.entry_bytes);
  shape.warps = static_cast<std::int32_t>(std::clamp<std::int64_t>(sum_shared_bytes / shape.warp_bytes, 1, most_sum_warps));
  return shape;
}

template <DataType in_type, DataType out_type>
class SumRows {
  static constexpr int unroll = sum_unroll_of(in_type, out_type);
  static constexpr int width = 16 / static_cast<int>(size_of(out_type));  // elements of a vector
  static constexpr int vector_bytes = width * static_cast<int>(size_of(in_type));
  static constexpr int piece_bytes = static_cast<int>(sum_piece_bytes(in_type, out_type));

 public:
  // By all threads of the block.
  template <class Work>
  __device__ static void run(const SumShape& shape, unsigned char* memory, const Work& work) {
    if (shape.weighted) SumRows(shape, memory).template sum_all<true>(work);
    else SumRows(shape, memory).template sum_all<false>(work);
  }

 private:
  __device__ SumRows(const SumShape& shape, unsigned char* memory)
      : shape_(shape), lane_(lane_of_thread()), slots_(memory + threadIdx.x / 32 * shape.warp_bytes) {}

  template <bool weighted, class Work>
  __device__ void sum_all(const Work& work) {
    const std::int64_t items = work.items();
    next_.item = warp_of_grid() - warps_of_grid();
    for (int slot = 0; slot < sum_slots; ++slot) load_next(work, items, slots_ + slot * piece_bytes);
    unsigned char* slot = slots_;
    int entry = 0;
    for (std::int64_t item = warp_of_grid(); item < items; item += warps_of_grid()) {
      const int count = count_at(entry);
      std::byte* const out = work.out(item);
      for (int piece = 0; piece < shape_.pieces; ++piece) {
        Sums sums(piece * (32 * unroll) + lane_, shape_.vectors);
        if (shape_.biased) sums.begin(work.bias(0, item), work.bias(1, item));
        // An item without rows has one empty slot per piece.
        for (int j = 0; j < (count > 0 ? count : 1); ++j) {
          copy_wait<sum_slots - 1>();
          meet();
          if (count > 0) sums.template add<weighted>(slot, weighted ? weights_at(entry)[j] : 1.0f, lane_);
          meet();
          load_next(work, items, slot);
          slot += piece_bytes;
          if (slot == slots_ + sum_slots * piece_bytes) slot = slots_;
        }
        sums.write(out);
      }
      if (++entry == sum_entries) entry = 0;
    }
  }

  // Where lanes read what others copied.
  __device__ static void meet() {
    if constexpr (vector_bytes != 16) __syncwarp();
  }

  // The sums of one piece: this lane's v-th vector is the piece's vector v * 32 + lane.
  struct Sums {
    float of[unroll][width] = {};
    int first;   // vector of the row
    int inside;  // vectors from there to the row's end

    __device__ Sums(int first_vector, int vectors) : first(first_vector), inside(vectors - first_vector) {}

    __device__ void begin(const std::byte* bias, const std::byte* other) {
#pragma unroll
      for (int v = 0; v < unroll; ++v) {
        if (32 * v >= inside || bias == nullptr) continue;
        Vector<out_type, width> x;
        x.read(bias + (first + 32 * v) * 16);
        x.unpack(of[v]);
        if (other == nullptr) continue;
        x.read(other + (first + 32 * v) * 16);
        add_vector<false>(v, x, 1.0f);
      }
    }

    // Past the row's end too, where a slot has older bytes.
    template <bool weighted>
    __device__ void add(const unsigned char* slot, float weight, int lane) {
#pragma unroll
      for (int v = 0; v < unroll; ++v) {
        Vector<in_type, width> x;
        x.read(slot + 32 * v * vector_bytes + lane * vector_bytes);
        add_vector<weighted>(v, x, weight);
      }
    }

    template <bool weighted, DataType type>
    __device__ void add_vector(int v, const Vector<type, width>& vector, float weight) {
      float x[width];
      vector.unpack(x);
#pragma unroll
      for (int i = 0; i < width; ++i) of[v][i] = numbers::sum(of[v][i], weighted ? numbers::product(weight, x[i]) : x[i]);
    }

    __device__ void write(std::byte* row) const {
      Vector<out_type, width> x[unroll];
      std::uint32_t odd = 0;
#pragma unroll
      for (int v = 0; v < unroll; ++v) {
        x[v].round(of[v]);
        odd = x[v].odd(odd);
      }
      if (odd != 0) {
#pragma unroll
        for (int v = 0; v < unroll; ++v) x[v].mend_nans();
      }
#pragma unroll
      for (int v = 0; v < unroll; ++v) {
        if (32 * v < inside) x[v].write(row + (first + 32 * v) * 16);
      }
    }
  };

  // What is loaded next: a piece of a row of an item.
  struct Next {
    std::int64_t item = 0;
    int offset = 0;  // of the piece in its row
    int entry = -1;
    int count = 0;
    int row = 0;
  };

  // A slot, empty when nothing is left: as many are under way as the ring has slots, always.
  template <class Work>
  __device__ void load_next(const Work& work, std::int64_t items, unsigned char* slot) {
    if (++next_.row >= next_.count) {
      next_.row = 0;
      next_.offset += piece_bytes;
      if (next_.offset >= shape_.row_bytes || next_.entry < 0) find_next(work, items);
    }
    if (next_.row < next_.count) {
      const std::byte* const from = rows_at(next_.entry)[next_.row] + next_.offset + 16 * lane_;
      unsigned char* const to = slot + 16 * lane_;
      const int left = shape_.row_bytes - next_.offset;
      if (left >= piece_bytes) {
#pragma unroll
        for (int at = 0; at < piece_bytes; at += 512) copy_async(to + at, from + at);
      } else {
        for (int at = 0; at < left - 16 * lane_; at += 512) copy_async(to + at, from + at);
      }
    }
    copy_commit();
  }

  template <class Work>
  __device__ void find_next(const Work& work, std::int64_t items) {
    next_.count = 0;
    next_.offset = 0;
    next_.item += warps_of_grid();
    if (next_.item >= items) return;
    if (++next_.entry == sum_entries) next_.entry = 0;
    next_.count = work.find(next_.item, lane_, rows_at(next_.entry), weights_at(next_.entry));
    if (lane_ == 0) count_at(next_.entry) = next_.count;
    __syncwarp();
  }

  __device__ unsigned char* entry_at(int entry) const {
    return slots_ + sum_slots * piece_bytes + entry * shape_.entry_bytes;
  }
  __device__ const std::byte** rows_at(int entry) const { return reinterpret_cast<const std::byte**>(entry_at(entry)); }
  __device__ float* weights_at(int entry) const { return reinterpret_cast<float*>(entry_at(entry) + 8 * shape_.most_rows); }
  __device__ int& count_at(int entry) const { return *reinterpret_cast<int*>(entry_at(entry) + 12 * shape_.most_rows); }

  const SumShape& shape_;
  const int lane_;
  unsigned char* const slots_;
  Next next_;
};

}  // namespace sluice::cuda
