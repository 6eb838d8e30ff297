// The bulk-copy ring: rows go from global memory through shared memory to up to many places, with one thread
// that loads, one warp that stores, and warps that find out where rows go. Rows are cut into equal pieces
// that fit a slot.
//
//   finders --[Entry: source, destinations]--> loader --[slots]--> storers
//
// A Work says what to copy:
//   std::int64_t items() const                                     rows, of which this block takes every gridDim-th
//   int find(std::int64_t item, int lane, std::byte** destinations, const std::byte** source) const
//       by a whole warp: writes the destinations, returns how many; lane 0 writes the source
//   void beside(std::int64_t item, int lane) const                 what goes beside the row, by that warp
#pragma once

#include "engine/cuda/step.cuh"

namespace sluice::cuda {

inline constexpr int finder_warps = 14;
inline constexpr int copy_threads = 32 * (2 + finder_warps);
inline constexpr int most_entries = 64;
inline constexpr int stores_in_flight = 4;  // pieces whose slots are still being read
inline constexpr std::int64_t largest_piece = 16384;
inline constexpr std::int64_t copy_shared_bytes = 200 * 1024;

// Sizes of one ring, computed by the host.
struct RingShape {
  std::int64_t row_bytes = 0;
  std::int32_t pieces = 1;            // of a row
  std::int32_t piece_bytes = 0;       // the last one is shorter
  std::int32_t slots = 1;
  std::int32_t most_destinations = 1;
  std::int32_t log_entries = 6;       // rows ahead of which is known where they go
};

inline RingShape ring_shape(std::int64_t row_bytes, int most_destinations) {
  RingShape shape;
  shape.row_bytes = row_bytes;
  shape.most_destinations = most_destinations;
  shape.pieces = static_cast<std::int32_t>((row_bytes + largest_piece - 1) / largest_piece);
  shape.piece_bytes = static_cast<std::int32_t>(core::align_up((row_bytes + shape.pieces - 1) / shape.pieces, 16));
  // A row's entry is taken from when a finder begins until its last piece is stored: some microseconds.
  shape.log_entries = most_destinations <= 32 ? 6 : 4;
  const std::int64_t room = copy_shared_bytes - 4096 - (std::int64_t{8} << shape.log_entries) * most_destinations;
  const std::int64_t slots = room / shape.piece_bytes;
  shape.slots = static_cast<std::int32_t>(slots > 64 ? 64 : slots);
  return shape;
}

// The ring in the block's shared memory.
class CopyRing {
 public:
  __device__ CopyRing(const RingShape& shape, unsigned char* memory) : shape_(shape) {
    full_ = reinterpret_cast<Barrier*>(memory);
    empty_ = full_ + 64;
    found_ = empty_ + 64;
    used_ = found_ + most_entries;
    sources_ = reinterpret_cast<const std::byte**>(used_ + most_entries);
    counts_ = reinterpret_cast<std::int64_t*>(sources_ + most_entries);
    destinations_ = reinterpret_cast<std::byte**>(counts_ + most_entries);
    const std::int64_t at = 3072 + (std::int64_t{8} << shape.log_entries) * shape.most_destinations;
    slots_ = memory + core::align_up(at, 128);
  }

  // By all threads of the block. Returns when every row of this block has been written.
  template <class Work>
  __device__ void run(const Work& work) {
    if (threadIdx.x == 0) initialise();
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t items = work.items();
    if (warp == 0) {
      if (lane == 0) load(items);
    } else if (warp == 1) {
      store(items, lane);
    } else {
      find(work, items, warp - 2, lane);
    }
  }

 private:
  __device__ void initialise() {
    for (int s = 0; s < shape_.slots; ++s) {
      full_[s].initialise(1);
      empty_[s].initialise(1);
    }
    for (int e = 0; e < 1 << shape_.log_entries; ++e) {
      found_[e].initialise(1);
      used_[e].initialise(2);  // loader and storer
    }
    fence_barrier_init();
  }

  // Entry and phase of the n-th row of this block; slot and phase of its n-th piece.
  __device__ int entry_of(std::int64_t n) const { return static_cast<int>(n) & ((1 << shape_.log_entries) - 1); }
  __device__ std::uint32_t lap_of(std::int64_t n) const { return static_cast<std::uint32_t>(n >> shape_.log_entries) & 1u; }

  __device__ std::uint32_t bytes_of(int piece) const {
    const std::int64_t left = shape_.row_bytes - static_cast<std::int64_t>(piece) * shape_.piece_bytes;
    return static_cast<std::uint32_t>(left < shape_.piece_bytes ? left : shape_.piece_bytes);
  }

  template <class Work>
  __device__ void find(const Work& work, std::int64_t items, int finder, int lane) {
    std::int64_t n = finder;
    for (std::int64_t item = blockIdx.x + n * gridDim.x; item < items; item += static_cast<std::int64_t>(finder_warps) * gridDim.x) {
      const int e = entry_of(n);
      used_[e].wait(lap_of(n) ^ 1u);
      const int count = work.find(item, lane, destinations_ + e * shape_.most_destinations, sources_ + e);
      if (lane == 0) counts_[e] = count;
      __syncwarp();
      if (lane == 0) found_[e].arrive();
      work.beside(item, lane);
      n += finder_warps;
    }
  }

  __device__ void load(std::int64_t items) {
    // Rows that peers or other kernels wrote with plain stores.
    fence_proxy_global();
    int slot = 0;
    std::uint32_t lap = 0;
    std::int64_t n = 0;
    for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x, ++n) {
      const int e = entry_of(n);
      found_[e].wait(lap_of(n));
      const std::byte* const source = sources_[e];
      const bool goes = counts_[e] > 0;
      used_[e].arrive();
      for (int p = 0; goes && p < shape_.pieces; ++p) {
        empty_[slot].wait(lap ^ 1u);
        full_[slot].arrive_expecting(bytes_of(p));
        bulk_load(at(slot), source + static_cast<std::int64_t>(p) * shape_.piece_bytes, bytes_of(p), full_[slot]);
        step_on(slot, lap);
      }
    }
  }

  // Lane d stores to destination d. Slots are given back `stores_in_flight` pieces later.
  __device__ void store(std::int64_t items, int lane) {
    int slot = 0, oldest = 0;
    std::uint32_t lap = 0;
    std::int64_t n = 0, stored = 0;
    for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x, ++n) {
      const int e = entry_of(n);
      found_[e].wait(lap_of(n));
      const auto count = static_cast<int>(counts_[e]);
      std::byte* const* const destinations = destinations_ + e * shape_.most_destinations;
      for (int p = 0; count > 0 && p < shape_.pieces; ++p) {
        full_[slot].wait(lap);
        for (int d = lane; d < count; d += 32) {
          bulk_store(destinations[d] + static_cast<std::int64_t>(p) * shape_.piece_bytes, at(slot), bytes_of(p));
        }
        bulk_commit();
        step_on(slot, lap);
        if (++stored <= stores_in_flight) continue;
        bulk_wait_read<stores_in_flight>();
        __syncwarp();
        if (lane == 0) empty_[oldest].arrive();
        if (++oldest == shape_.slots) oldest = 0;
      }
      __syncwarp();
      if (lane == 0) used_[e].arrive();
    }
    bulk_wait();
    fence_proxy_global();
  }

  __device__ void step_on(int& slot, std::uint32_t& lap) const {
    if (++slot != shape_.slots) return;
    slot = 0;
    lap ^= 1u;
  }
  __device__ unsigned char* at(int slot) const { return slots_ + static_cast<std::int64_t>(slot) * shape_.piece_bytes; }

  const RingShape& shape_;
  Barrier *full_, *empty_, *found_, *used_;
  const std::byte** sources_;
  std::int64_t* counts_;
  std::byte** destinations_;
  unsigned char* slots_;
};

}  // namespace sluice::cuda
