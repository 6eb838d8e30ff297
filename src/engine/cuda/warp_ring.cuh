// A ring of slots in shared memory that belongs to one warp. Bulk loads run some pieces ahead of the warp's work,
// into the next items too. Warps share nothing, so none waits for another.
//
// An item has a source, or none, which is cut into equal pieces that fit a slot.
#pragma once

#include <algorithm>

#include "engine/cuda/block.cuh"
#include "engine/cuda/step.cuh"

namespace sluice::cuda {

inline constexpr std::int64_t ring_shared_bytes = 215 * 1024;  // of a block
inline constexpr int most_slots = 8;

struct RingShape {
  std::int32_t piece_bytes = 16;  // the last one of a source is shorter
  std::int32_t slots = 1;
  std::int32_t items_ahead = 1;  // whose entries are known: a power of two
  std::int32_t entry_bytes = 16;

  // Barriers, bytes of the items ahead, slots, entries.
  SLUICE_HD std::int64_t warp_bytes() const {
    return core::align_up(128 + static_cast<std::int64_t>(slots) * piece_bytes + static_cast<std::int64_t>(items_ahead) * entry_bytes, 128);
  }
};

// Bytes for the slots and entries of each of `warps` rings in a block, behind its barriers.
inline std::int64_t ring_room(int warps) { return ring_shared_bytes / warps / 128 * 128 - 128; }

// `piece_bytes` is a multiple of 16. Entries take an eighth of the room at most, and no slot's place.
inline constexpr int few_items_ahead = 4;
inline RingShape ring_shape(std::int64_t piece_bytes, std::int64_t entry_bytes, int warps) {
  RingShape shape;
  shape.piece_bytes = static_cast<std::int32_t>(piece_bytes);
  shape.entry_bytes = static_cast<std::int32_t>(core::align_up(entry_bytes, 16));
  const std::int64_t room = ring_room(warps);
  const auto entries = [&] { return static_cast<std::int64_t>(shape.items_ahead) * shape.entry_bytes; };
  shape.items_ahead = 2 * few_items_ahead;
  while (shape.items_ahead > 2 && (8 * entries() > room || entries() + piece_bytes > room)) shape.items_ahead /= 2;
  shape.slots = static_cast<std::int32_t>(std::clamp<std::int64_t>((room - entries()) / piece_bytes, 1, most_slots));
  return shape;
}

class WarpRing {
 public:
  // By all lanes of the warp, whose items are `first`, `first` + `step`, ... below `end`.
  __device__ WarpRing(const RingShape& shape, unsigned char* memory, std::int64_t first, int step, std::int64_t end)
      : shape_(shape), step_(step), end_(end), item_(first - step) {
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

  // What is known of this warp's n-th item: where its source lies, and whatever its finder adds.
  __device__ unsigned char* entry(std::int64_t n) const {
    return slots_ + static_cast<std::int64_t>(shape_.slots) * shape_.piece_bytes + (n & (shape_.items_ahead - 1)) * shape_.entry_bytes;
  }
  __device__ const std::byte*& source(std::int64_t n) const { return *reinterpret_cast<const std::byte**>(entry(n)); }
  // Of its source, once load_ahead(n) has been called; 0 where it has none.
  __device__ std::int32_t bytes(std::int64_t n) const { return bytes_of_items()[n & (shape_.items_ahead - 1)]; }

  // Fills the slots that are free, but for `kept`. find(item, n) writes the entry of an item and returns its bytes.
  // `n`: the item that comes next.
  template <class Find>
  __device__ void load_ahead(std::int64_t n, int kept, Find&& find) {
    while (loaded_ < shape_.slots - kept && find_piece(n, find)) {
      if (lane_of_thread() == 0) {
        const auto bytes = static_cast<std::uint32_t>(min(bytes_ - first_, shape_.piece_bytes));
        full_[load_slot_].arrive_expecting(bytes);
        bulk_load(at(load_slot_), source(n_) + first_, bytes, full_[load_slot_]);
      }
      if (++load_slot_ == shape_.slots) load_slot_ = 0;
      ++loaded_;
      first_ += shape_.piece_bytes;
    }
  }

  // The oldest piece, when it is there.
  __device__ unsigned char* wait() {
    full_[slot_].wait(lap_);
    return at(slot_);
  }
  // It is done with.
  __device__ void pass() {
    --loaded_;
    if (++slot_ != shape_.slots) return;
    slot_ = 0;
    lap_ ^= 1u;
  }

 private:
  // Whether there is a piece to load, near enough to the item that comes next.
  template <class Find>
  __device__ bool find_piece(std::int64_t n, Find&& find) {
    if (first_ < bytes_) return true;
    while (n_ - n < shape_.items_ahead - 1 && item_ + step_ < end_) {
      item_ += step_;
      ++n_;
      first_ = 0;
      bytes_ = find(item_, n_);
      if (lane_of_thread() == 0) bytes_of_items()[n_ & (shape_.items_ahead - 1)] = bytes_;
      __syncwarp();
      if (bytes_ > 0) return true;
    }
    return false;
  }

  __device__ std::int32_t* bytes_of_items() const { return reinterpret_cast<std::int32_t*>(full_ + most_slots); }
  __device__ unsigned char* at(int slot) const { return slots_ + static_cast<std::int64_t>(slot) * shape_.piece_bytes; }

  const RingShape& shape_;
  int step_;
  std::int64_t end_;
  Barrier* full_;
  unsigned char* slots_;
  // What is loaded next: the bytes of the source of this warp's n_-th item, from the `first_` on.
  std::int64_t item_;
  std::int64_t n_ = -1;
  std::int32_t first_ = 0, bytes_ = 0;
  int load_slot_ = 0, slot_ = 0;
  std::uint32_t lap_ = 0;
  int loaded_ = 0;  // and not passed
};

}  // namespace sluice::cuda
