// Copies of rows, a warp per row: bulk loads into the warp's ring, and from there a bulk store to each of up to
// many places. A full row per slot and a dozen warps keep enough bytes in flight for what one SM can store
// (bench/probes/ring: "each warp its own slot").
//
// A Work says what to copy:
//   std::int64_t items() const
//   int find(std::int64_t item, int lane, std::byte** destinations, const std::byte** source) const
//       by a whole warp: writes the destinations, returns how many; lane 0 writes the source
//   void beside(std::int64_t item, int lane) const      what goes beside the row
// and if it changes them on the way:
//   static constexpr int shrink      bytes loaded for each byte that is stored
//   void change(std::int64_t item, std::int64_t first, unsigned char* bytes, std::uint32_t count, int lane) const
//       makes of `count` bytes of the row, from the `first` on, what is stored of them, in place
#pragma once

#include <algorithm>

#include "engine/cuda/warp_ring.cuh"

namespace sluice::cuda {

inline constexpr int most_copy_warps = 28;

struct CopyShape {
  RingShape ring;
  int warps = 1;  // of a block

  int threads() const { return 32 * warps; }
};

// As many warps as have a slot for a whole row each, since a warp moves one row at a time; 14 at least. Rows of
// more than a slot are cut into equal pieces, of a multiple of `unit` bytes.
inline CopyShape copy_shape(std::int64_t row_bytes, int most_destinations, int most_warps = most_copy_warps, std::int64_t unit = 16) {
  const std::int64_t entry = 16 + 8 * static_cast<std::int64_t>(most_destinations);
  const std::int64_t beside = 256 + 8 * core::align_up(entry, 16);
  CopyShape shape;
  shape.warps = static_cast<int>(std::clamp<std::int64_t>(ring_shared_bytes / (row_bytes + beside), 14, most_warps));
  const std::int64_t largest = (ring_shared_bytes / shape.warps - beside) / unit * unit;
  const std::int64_t pieces = (row_bytes + largest - 1) / largest;
  shape.ring = ring_shape(row_bytes, core::align_up((row_bytes + pieces - 1) / pieces, unit), entry, shape.warps);
  return shape;
}

// By all threads of the block. Returns when the rows of this warp have been written.
template <class Work>
__device__ void copy_rows(const RingShape& shape, unsigned char* memory, const Work& work) {
  constexpr bool changes = requires { Work::shrink; };
  constexpr int shrink = [] {
    if constexpr (changes) return Work::shrink;
    else return 1;
  }();
  const int lane = lane_of_thread();
  const std::int64_t items = work.items();
  WarpRing ring(shape, memory, items);
  // Entry: the source, how many destinations, the destinations.
  const auto destinations = [&](std::int64_t n) { return reinterpret_cast<std::byte**>(ring.entry(n) + 16); };
  const auto places = [&](std::int64_t n) -> int& { return *reinterpret_cast<int*>(ring.entry(n) + 8); };
  const auto find = [&](std::int64_t item, std::int64_t n) {
    const int count = work.find(item, lane, destinations(n), ring.sources(n));
    if (lane == 0) places(n) = count;
    return count > 0 ? 1 : 0;
  };
  // A slot whose store is being read is kept for one piece, if there are others.
  const int kept = shape.slots > 1 ? 1 : 0;
  std::int64_t n = 0;
  for (std::int64_t item = warp_of_grid(); item < items; item += warps_of_grid(), ++n) {
    ring.load_ahead(n, kept, find);
    work.beside(item, lane);
    if (ring.count(n) == 0) continue;
    for (int piece = 0; piece < shape.pieces; ++piece) {
      unsigned char* const slot = ring.wait();
      const std::int64_t first = static_cast<std::int64_t>(piece) * shape.piece_bytes;
      if constexpr (changes) {
        work.change(item, first, slot, ring.bytes_of(piece), lane);
        fence_proxy_shared();
        __syncwarp();
      }
      for (int d = lane; d < places(n); d += 32) {
        bulk_store(destinations(n)[d] + first / shrink, slot, ring.bytes_of(piece) / shrink);
      }
      bulk_commit();
      ring.pass();
      if (kept > 0) bulk_wait_read<1>();
      else bulk_wait_read<0>();
      __syncwarp();
      ring.load_ahead(n, kept, find);
    }
  }
  bulk_wait();
  fence_proxy_global();
}

}  // namespace sluice::cuda
