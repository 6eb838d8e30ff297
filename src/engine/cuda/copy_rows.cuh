// Copies of rows, a warp per item: a bulk load into the warp's ring, and from there a bulk store to each of up to
// many places. A full row per slot and a dozen warps keep enough bytes in flight for what one SM can store
// (bench/probes/ring: "each warp its own slot").
//
// An SM begins a bulk copy every 75 to 110 ns, whatever its size (bench/probes/one_sm), so small rows travel by twos
// or fours: an item is as many rows as lie one behind the other in a slot, and those of them that lie so at a
// destination too are stored at once.
//
// A Work says what to copy:
//   std::int64_t rows() const
//   int find(Item item, int lane, Run* runs, const std::byte** source) const
//       by a whole warp: writes the runs of these rows, returns how many; lane 0 writes the source of the first.
//       There is one row unless its shape was made for more
//   std::byte* to(Run run) const             where it lies
//   Held bring(Item item, int lane) const    loads what goes beside the rows while they are on their way,
//   void beside(Item item, const Run* runs, int count, Held held, int lane) const     and stores that
// and if it changes them on the way:
//   static constexpr int shrink      bytes loaded for each byte that is stored
//   void change(std::int64_t row, std::int64_t first, unsigned char* bytes, std::uint32_t count, int lane) const
//       makes of `count` bytes of the row, from the `first` on, what is stored of them, in place
#pragma once

#include <algorithm>

#include "engine/cuda/warp_ring.cuh"

namespace sluice::cuda {

inline constexpr int most_copy_warps = 20;
inline constexpr int most_rows_at_once = 4;

// Rows that lie one behind the other at their source.
struct Item {
  std::int64_t first = 0;
  int rows = 1;
};

// Those of them that do so at a destination too: where its rows lie is the Work's to know. In a word, as many are kept.
class Run {
 public:
  __device__ explicit Run(std::int64_t row, int rank = 0, int first = 0)
      : word_(static_cast<std::uint64_t>(row) << 11 | static_cast<unsigned>(rank << 4 | first << 2)) {}
  __device__ void add_row() { ++word_; }
  __device__ std::int64_t row() const { return static_cast<std::int64_t>(word_ >> 11); }  // of the first, there
  __device__ int rank() const { return static_cast<int>(word_ >> 4) & 127; }
  __device__ int first() const { return static_cast<int>(word_ >> 2) & 3; }  // of the item
  __device__ int rows() const { return static_cast<int>(word_ & 3) + 1; }

 private:
  std::uint64_t word_;
};
static_assert(most_rows_at_once == 4 && limits::ranks_per_node == 128 && sizeof(Run) == 8);

struct CopyShape {
  RingShape ring;
  int row_bytes = 16;     // as they are loaded
  int rows_at_once = 1;
  int warps = 1;  // of a block

  int threads() const { return 32 * warps; }
};

// As many warps as have a slot for a whole item each, since a warp moves one at a time; 14 at least. Rows of more than
// a slot are cut into equal pieces, of a multiple of `unit` bytes.
inline CopyShape copy_shape(std::int64_t row_bytes, int most_destinations, int most_warps = most_copy_warps, std::int64_t unit = 16,
                            int rows_at_once = 1) {
  const std::int64_t item_bytes = rows_at_once * row_bytes;
  const std::int64_t entry = core::align_up(16 + static_cast<std::int64_t>(sizeof(Run)) * rows_at_once * most_destinations, 16);
  const auto room_of = [&](std::int64_t warps) { return ring_room(static_cast<int>(warps)) - few_items_ahead * entry; };
  CopyShape shape;
  shape.row_bytes = static_cast<int>(row_bytes);
  shape.rows_at_once = rows_at_once;
  shape.warps = most_warps;
  while (shape.warps > 14 && room_of(shape.warps) < item_bytes) --shape.warps;
  const std::int64_t largest = room_of(shape.warps) / unit * unit;
  const std::int64_t pieces = (item_bytes + largest - 1) / largest;
  shape.ring = ring_shape(core::align_up((item_bytes + pieces - 1) / pieces, unit), entry, shape.warps);
  return shape;
}

// For so many rows that lie one behind the other, on so many SMs: as many at once as a slot has room for, if all
// warps have work then.
inline int rows_that_go_at_once(std::int64_t row_bytes, std::int64_t rows, int destinations, int sms) {
  constexpr std::int64_t slot_bytes = 15 * 1024;
  int at_once = 1;
  while (2 * at_once <= most_rows_at_once && 2 * at_once * row_bytes <= slot_bytes && 2 * at_once * destinations <= 64 &&
         rows >= std::int64_t{4} * at_once * sms * most_copy_warps) {
    at_once *= 2;
  }
  return at_once;
}

// By all threads of the block. Returns when the rows of this warp have been written.
template <class Work>
__device__ void copy_rows(const CopyShape& shape, unsigned char* memory, const Work& work) {
  constexpr bool changes = requires { Work::shrink; };
  constexpr int shrink = [] {
    if constexpr (changes) return Work::shrink;
    else return 1;
  }();
  const int lane = lane_of_thread();
  const std::int64_t rows = work.rows();
  const std::int64_t first_item = warp_of_grid() * shape.rows_at_once;
  const int step = static_cast<int>(warps_of_grid()) * shape.rows_at_once;
  WarpRing ring(shape.ring, memory, first_item, step, rows);
  const auto item_at = [&](std::int64_t first) {
    return Item{first, static_cast<int>(min(static_cast<std::int64_t>(shape.rows_at_once), rows - first))};
  };
  // Entry: the source, how many runs, the runs.
  const auto runs = [&](std::int64_t n) { return reinterpret_cast<Run*>(ring.entry(n) + 16); };
  const auto run_count = [&](std::int64_t n) -> int& { return *reinterpret_cast<int*>(ring.entry(n) + 8); };
  const auto find = [&](std::int64_t first, std::int64_t n) {
    const Item item = item_at(first);
    const int count = work.find(item, lane, runs(n), &ring.source(n));
    if (lane == 0) run_count(n) = count;
    return count > 0 ? item.rows * shape.row_bytes : 0;
  };
  // A slot whose store is being read is kept for one piece, if there are others.
  const int kept = shape.ring.slots > 1 ? 1 : 0;
  std::int64_t n = 0;
  for (std::int64_t row = first_item; row < rows; row += step, ++n) {
    ring.load_ahead(n, kept, find);
    const Item item = item_at(row);
    const auto held = work.bring(item, lane);
    const std::int32_t all_bytes = ring.bytes(n);
    if (all_bytes == 0) work.beside(item, runs(n), 0, held, lane);
    for (std::int32_t first = 0; first < all_bytes; first += shape.ring.piece_bytes) {
      unsigned char* const slot = ring.wait();
      const auto bytes = static_cast<std::uint32_t>(min(all_bytes - first, shape.ring.piece_bytes));
      if constexpr (changes) {
        work.change(row, first, slot, bytes, lane);
        fence_proxy_shared();
        __syncwarp();
      }
      for (int r = lane; r < run_count(n); r += 32) {
        const Run run = runs(n)[r];
        std::byte* const to = work.to(run);
        if (shape.rows_at_once == 1) bulk_store(to + first / shrink, slot, bytes / shrink);
        else bulk_store(to, slot + run.first() * shape.row_bytes, static_cast<std::uint32_t>(run.rows() * shape.row_bytes));
      }
      bulk_commit();
      if (first == 0) work.beside(item, runs(n), run_count(n), held, lane);
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
