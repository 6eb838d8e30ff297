// A ring of slots in shared memory that belongs to one warp. Bulk loads run some pieces ahead of the warp's work,
// into the next items too. Warps share nothing, so none waits for another.
//
// An item has some sources, all of one size, which are cut into equal pieces that fit a slot. Pieces come in the
// order: piece 0 of each source, piece 1 of each source, ...
#pragma once

#include "engine/cuda/block.cuh"
#include "engine/cuda/step.cuh"

namespace sluice::cuda {

inline constexpr std::int64_t ring_shared_bytes = 220 * 1024;  // of a block
inline constexpr int most_slots = 8;

struct RingShape {
  std::int64_t source_bytes = 0;
  std::int32_t pieces = 1;       // of a source
  std::int32_t piece_bytes = 16; // the last one is shorter
  std::int32_t slots = 1;
  std::int32_t items_ahead = 1;  // whose entries are known: a power of two
  std::int32_t entry_bytes = 16;

  // Barriers, counts of the items ahead, slots, entries.
  SLUICE_HD std::int64_t warp_bytes() const {
    return core::align_up(128 + static_cast<std::int64_t>(slots) * piece_bytes + static_cast<std::int64_t>(items_ahead) * entry_bytes, 128);
  }
};

// `warps` rings in a block. `piece_bytes` is a multiple of 16.
inline RingShape ring_shape(std::int64_t source_bytes, std::int64_t piece_bytes, std::int64_t entry_bytes, int warps) {
  RingShape shape;
  shape.source_bytes = source_bytes;
  shape.piece_bytes = static_cast<std::int32_t>(piece_bytes);
  shape.pieces = static_cast<std::int32_t>((source_bytes + piece_bytes - 1) / piece_bytes);
  shape.entry_bytes = static_cast<std::int32_t>(core::align_up(entry_bytes, 16));
  const std::int64_t room = ring_shared_bytes / warps / 128 * 128 - 128;
  shape.items_ahead = 8;
  while (shape.items_ahead > 2 && 8 * shape.items_ahead * shape.entry_bytes > room) shape.items_ahead /= 2;
  const std::int64_t slots = (room - static_cast<std::int64_t>(shape.items_ahead) * shape.entry_bytes) / piece_bytes;
  shape.slots = static_cast<std::int32_t>(slots < 1 ? 1 : (slots > most_slots ? most_slots : slots));
  return shape;
}

class WarpRing {
 public:
  // By all lanes of the warp. `items`: of the grid, of which each warp takes every warps_of_grid()-th.
  __device__ WarpRing(const RingShape& shape, unsigned char* memory, std::int64_t items)
      : shape_(shape), items_(items), item_(warp_of_grid() - warps_of_grid()) {
    unsigned char* const mine = memory + threadIdx.x / 32 * shape.warp_bytes();
    full_ = reinterpret_cast<Barrier*>(mine);
    slots_ = mine + 128;
    if (lane_of_thread() == 0) {
      for (int s = 0; s < shape.slots; ++s) full_[s].initialise(1);
      fence_barrier_init();
      // Rows that peers or other kernels wrote with plain stores.
      fence_proxy_global();
    }
    __syncwarp();
  }

  // What is known of this warp's n-th item: where its sources lie, and whatever its finder adds.
  __device__ unsigned char* entry(std::int64_t n) const {
    return slots_ + static_cast<std::int64_t>(shape_.slots) * shape_.piece_bytes + (n & (shape_.items_ahead - 1)) * shape_.entry_bytes;
  }
  __device__ const std::byte** sources(std::int64_t n) const { return reinterpret_cast<const std::byte**>(entry(n)); }
  // Of its sources, once load_ahead(n) has been called.
  __device__ int count(std::int64_t n) const { return counts()[n & (shape_.items_ahead - 1)]; }

  // Fills the slots that are free, but for `kept`. find(item, n) writes the entry of an item and returns how many
  // sources it has. `n`: the item that comes next.
  template <class Find>
  __device__ void load_ahead(std::int64_t n, int kept, Find&& find) {
    while (loaded_ - passed_ < shape_.slots - kept && find_piece(n, find)) {
      if (lane_of_thread() == 0) {
        const std::int64_t first = static_cast<std::int64_t>(piece_) * shape_.piece_bytes;
        full_[load_slot_].arrive_expecting(bytes_of(piece_));
        bulk_load(at(load_slot_), sources(n_)[source_] + first, bytes_of(piece_), full_[load_slot_]);
      }
      if (++load_slot_ == shape_.slots) load_slot_ = 0;
      ++loaded_;
      ++source_;
    }
  }

  // The oldest piece, when it is there.
  __device__ unsigned char* wait() {
    full_[slot_].wait(lap_);
    return at(slot_);
  }
  // It is done with.
  __device__ void pass() {
    ++passed_;
    if (++slot_ != shape_.slots) return;
    slot_ = 0;
    lap_ ^= 1u;
  }

  __device__ std::uint32_t bytes_of(int piece) const {
    const std::int64_t left = shape_.source_bytes - static_cast<std::int64_t>(piece) * shape_.piece_bytes;
    return static_cast<std::uint32_t>(left < shape_.piece_bytes ? left : shape_.piece_bytes);
  }

 private:
  // Whether there is a piece to load, near enough to the item that comes next.
  template <class Find>
  __device__ bool find_piece(std::int64_t n, Find&& find) {
    if (source_ < count_) return true;
    if (count_ > 0 && piece_ + 1 < shape_.pieces) {
      ++piece_;
      source_ = 0;
      return true;
    }
    while (n_ - n < shape_.items_ahead - 1 && item_ + warps_of_grid() < items_) {
      item_ += warps_of_grid();
      ++n_;
      piece_ = 0;
      source_ = 0;
      count_ = find(item_, n_);
      if (lane_of_thread() == 0) counts()[n_ & (shape_.items_ahead - 1)] = count_;
      __syncwarp();
      if (count_ > 0) return true;
    }
    return false;
  }

  __device__ int* counts() const { return reinterpret_cast<int*>(full_ + most_slots); }
  __device__ unsigned char* at(int slot) const { return slots_ + static_cast<std::int64_t>(slot) * shape_.piece_bytes; }

  const RingShape& shape_;
  std::int64_t items_;
  Barrier* full_;
  unsigned char* slots_;
  // What is loaded next: a piece of a source of this warp's n_-th item.
  std::int64_t item_;
  std::int64_t n_ = -1;
  int piece_ = 0, source_ = 0, count_ = 0;
  int load_slot_ = 0, slot_ = 0;
  std::uint32_t lap_ = 0;
  int loaded_ = 0, passed_ = 0;
};

}  // namespace sluice::cuda
