// Which ring of bulk copies (global -> shared -> global) copies rows fastest in one GPU's memory? Slot and
// ring size, one or four storing warps, one or four bulk loads per slot, and how many slots a storer holds.
// Rows are read in order and written in a scattered order, each by one bulk store per slot that it fills.
#include "bulk.cuh"

namespace {

using namespace probe;

constexpr unsigned rows = 8192;

struct Shape {
  int row_bytes, sms, ring_bytes, slot_bytes, storers, load_ops, load_lanes;
  int slots() const { return std::min(ring_bytes / slot_bytes, most_slots); }
  int rows_per_slot() const { return std::max(slot_bytes / row_bytes, 1); }
  int pieces_per_row() const { return (row_bytes + slot_bytes - 1) / slot_bytes; }
};

struct Args {
  const char* from;
  char* to;
  unsigned row_bytes, slot_bytes, slots, rows_per_slot, piece_bytes, load_bytes, load_lanes, storers;
};

constexpr unsigned round_to_16(unsigned bytes) { return (bytes + 15) / 16 * 16; }

Args args_of(const Shape& shape, const Arena& arena) {
  const unsigned piece = round_to_16((shape.row_bytes + shape.pieces_per_row() - 1) / shape.pieces_per_row());
  const unsigned chunk = shape.rows_per_slot() > 1 ? shape.rows_per_slot() * shape.row_bytes : piece;
  return {arena.from(),
          arena.to(),
          unsigned(shape.row_bytes),
          unsigned(shape.slot_bytes),
          unsigned(shape.slots()),
          unsigned(shape.rows_per_slot()),
          piece,
          round_to_16((chunk + shape.load_ops - 1) / shape.load_ops),
          unsigned(shape.load_lanes),
          unsigned(shape.storers)};
}

__host__ __device__ unsigned scattered(unsigned row) { return row * 4099u % rows; }

// What passes through one slot: whole rows, or a piece of one. A row stays in its block.
class Chunk {
 public:
  __device__ explicit Chunk(const Args& args) : args_(args), row_(blockIdx.x * args.rows_per_slot) {}
  __device__ bool exists() const { return row_ < rows; }
  __device__ void next() {
    offset_ += args_.piece_bytes;
    if (offset_ >= args_.row_bytes) offset_ = 0, row_ += gridDim.x * args_.rows_per_slot;
  }
  __device__ unsigned row() const { return row_; }
  __device__ unsigned offset() const { return offset_; }
  __device__ unsigned bytes_of_row() const { return min(args_.piece_bytes, args_.row_bytes - offset_); }
  __device__ unsigned bytes() const { return bytes_of_row() * args_.rows_per_slot; }

 private:
  const Args& args_;
  unsigned row_, offset_ = 0;
};

// A slot of the ring and the parity of its barriers, advanced by `step` slots at a time.
struct Position {
  unsigned slot, parity;
  __device__ void advance(unsigned step, unsigned slots) {
    slot += step;
    if (slot >= slots) slot -= slots, parity ^= 1;
  }
};

struct Ring {
  char* memory;
  std::uint64_t *full, *empty;
};

__device__ void load_chunks(const Args& args, const Ring& ring) {
  const unsigned lane = threadIdx.x % 32;
  if (lane >= args.load_lanes) return;
  const unsigned mask = (1u << args.load_lanes) - 1;
  Position at{0, 1};  // the first pass finds every slot empty
  for (Chunk chunk(args); chunk.exists(); chunk.next()) {
    wait(ring.empty[at.slot], at.parity);
    const unsigned bytes = chunk.bytes();
    if (lane == 0) expect(ring.full[at.slot], bytes);
    __syncwarp(mask);
    const char* const from = args.from + std::size_t{chunk.row()} * args.row_bytes + chunk.offset();
    char* const slot = ring.memory + at.slot * args.slot_bytes;
    for (unsigned done = lane * args.load_bytes; done < bytes; done += args.load_lanes * args.load_bytes) {
      load(slot + done, from + done, min(args.load_bytes, bytes - done), ring.full[at.slot]);
    }
    at.advance(1, args.slots);
  }
}

// Stores every `storers`-th chunk and gives a slot back when `held` later ones of its own are under way.
template <int held>
__device__ void store_chunks(const Args& args, const Ring& ring, unsigned storer) {
  if (threadIdx.x % 32 != 0) return;
  Position at{storer, 0}, oldest{storer, 0};
  Chunk chunk(args);
  for (unsigned i = 0; i < storer; ++i) chunk.next();
  for (int stored = 0; chunk.exists(); ++stored) {
    wait(ring.full[at.slot], at.parity);
    const unsigned bytes = chunk.bytes_of_row();
    for (unsigned i = 0; i < args.rows_per_slot; ++i) {
      store(args.to + std::size_t{scattered(chunk.row() + i)} * args.row_bytes + chunk.offset(),
            ring.memory + at.slot * args.slot_bytes + i * bytes, bytes);
    }
    commit();
    if (stored >= held) {
      wait_until_read<held>();
      arrive(ring.empty[oldest.slot]);
      oldest.advance(args.storers, args.slots);
    }
    at.advance(args.storers, args.slots);
    for (unsigned i = 0; i < args.storers; ++i) chunk.next();
  }
  wait_until_written();
}

template <int held>
__global__ void ring_copy(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char memory[];
  __shared__ std::uint64_t full[most_slots], empty[most_slots];
  for (unsigned slot = threadIdx.x; slot < args.slots; slot += blockDim.x) {
    init_barrier(full[slot], 1);
    init_barrier(empty[slot], 1);
  }
  publish_barriers();
  const Ring ring{memory, full, empty};
  const unsigned warp = threadIdx.x / 32;
  if (warp == 0) {
    load_chunks(args, ring);
  } else {
    store_chunks<held>(args, ring, warp - 1);
  }
}

// For comparison: each warp has one slot of its own, as large as a row.
__global__ void warp_copy(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char memory[];
  __shared__ std::uint64_t full[32];
  const unsigned warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) init_barrier(full[warp], 1);
  publish_barriers();
  if (threadIdx.x % 32 != 0) return;
  char* const slot = memory + warp * args.row_bytes;
  unsigned parity = 0;
  for (unsigned row = warp * gridDim.x + blockIdx.x; row < rows; row += warps * gridDim.x, parity ^= 1) {
    wait_until_read<0>();
    expect(full[warp], args.row_bytes);
    load(slot, args.from + std::size_t{row} * args.row_bytes, args.row_bytes, full[warp]);
    wait(full[warp], parity);
    store(args.to + std::size_t{scattered(row)} * args.row_bytes, slot, args.row_bytes);
    commit();
  }
  wait_until_written();
}

__global__ void count_differences(const __grid_constant__ Args args, unsigned* differences) {
  const unsigned words = args.row_bytes / 4;
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto* from = reinterpret_cast<const unsigned*>(args.from + std::size_t{row} * args.row_bytes);
    const auto* to =
        reinterpret_cast<const unsigned*>(args.to + std::size_t{scattered(row)} * args.row_bytes);
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) {
      if (from[i] != to[i]) atomicAdd(differences, 1u);
    }
  }
}

using Kernel = void (*)(Args);
struct Held {
  int slots;
  Kernel kernel;
};
const Held helds[] = {{16, ring_copy<16>}, {8, ring_copy<8>}, {4, ring_copy<4>},
                      {2, ring_copy<2>},   {1, ring_copy<1>}, {0, ring_copy<0>}};

// A storer that holds more than its share of the ring would wait for a slot that itself holds.
bool fits(const Shape& shape, int held) { return held * shape.storers < shape.slots(); }

const Held& usual_held(const Shape& shape) {
  return *std::find_if(std::begin(helds), std::end(helds),
                       [&](const Held& held) { return held.slots * shape.storers <= shape.slots() / 2; });
}

class Bench {
 public:
  Bench() : arena_(std::size_t{rows} * 14336), stream_(new_stream()), differences_(pinned<unsigned>(1)) {
    for (const auto& held : helds) allow(held.kernel);
    allow(warp_copy);
  }

  // Checked once, then timed with a cold L2.
  Spread run(const Shape& shape, Kernel kernel, int threads, std::size_t shared, int repetitions) {
    const auto args = args_of(shape, arena_);
    const auto launch = [&](cudaStream_t on) {
      kernel<<<shape.sms, threads, shared, on>>>(args);
      CHECK(cudaGetLastError());
    };
    *differences_ = 0;
    CHECK(cudaMemsetAsync(arena_.to(), 0, arena_.bytes(), stream_));
    launch(stream_);
    count_differences<<<528, 256, 0, stream_>>>(args, differences_);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream_));
    if (*differences_ != 0) {
      std::printf("FAILED: %u words differ: row %d, %d SMs, ring %d, slot %d, %d storers, %d loads\n",
                  *differences_, shape.row_bytes, shape.sms, shape.ring_bytes, shape.slot_bytes,
                  shape.storers, shape.load_ops);
      std::exit(1);
    }
    return time_us(arena_, stream_, repetitions, launch);
  }
  Spread run(const Shape& shape, const Held& held, int repetitions) {
    return run(shape, held.kernel, 32 * (1 + shape.storers), std::size_t(shape.slots()) * shape.slot_bytes,
               repetitions);
  }
  Spread run_warps(const Shape& shape, int repetitions) {
    const int warps = std::min(most_shared_bytes / shape.row_bytes, 32);
    return run(shape, warp_copy, 32 * warps, std::size_t(warps) * shape.row_bytes, repetitions);
  }
  Spread run_engine(const Shape& shape, int repetitions) {
    return time_us(arena_, stream_, repetitions, [&](cudaStream_t on) {
      CHECK(cudaMemcpyAsync(arena_.to(), arena_.from(), std::size_t{rows} * shape.row_bytes,
                            cudaMemcpyDeviceToDevice, on));
    });
  }

 private:
  static void allow(Kernel kernel) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes));
  }
  Arena arena_;
  cudaStream_t stream_;
  unsigned* differences_;
};

double rate(const Shape& shape, double us) { return double(rows) * shape.row_bytes / us * 1e-3; }

void print_line(const char* name, const Shape& shape, const Spread& time) {
  std::printf("  %-58s %7.1f GB/s (p10 %.1f, p90 %.1f), %.1f us\n", name, rate(shape, time.p50),
              rate(shape, time.p90), rate(shape, time.p10), time.p50);
  std::fflush(stdout);
}

std::string describe(const Shape& shape, int held) {
  char text[128];
  std::snprintf(text, sizeof text, "ring %3d KB, slot %2d KB, %d storer%s, %d load%s by %d, held %d",
                shape.ring_bytes >> 10, shape.slot_bytes >> 10, shape.storers, shape.storers > 1 ? "s" : "",
                shape.load_ops, shape.load_ops > 1 ? "s" : "", shape.load_lanes, held);
  return text;
}

struct Result {
  Shape shape;
  double us;
};

std::vector<Result> print_matrix(Bench& bench, int row_bytes, int sms) {
  std::vector<Result> results;
  std::printf(
      "\nrow %d B, %d SMs: GB/s, p50 of 9 | one storer: 1 load, 4 by 1 thread, 4 by 4 | four storers: the "
      "same\n",
      row_bytes, sms);
  for (int ring : {64, 128, 200}) {
    for (int slot : {2, 4, 8, 14}) {
      std::printf("  ring %3d KB, slot %2d KB", ring, slot);
      for (int storers : {1, 4}) {
        std::printf(" |");
        for (const auto& [ops, lanes] : {std::pair{1, 1}, {4, 1}, {4, 4}}) {
          const Shape shape{row_bytes, sms, ring << 10, slot << 10, storers, ops, lanes};
          results.push_back({shape, bench.run(shape, usual_held(shape), 9).p50});
          std::printf(" %7.1f", rate(shape, results.back().us));
        }
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  std::sort(results.begin(), results.end(), [](const Result& a, const Result& b) { return a.us < b.us; });
  return results;
}

void print_best(Bench& bench, const std::vector<Result>& results) {
  std::printf(" the best again, p50 of 31, and for comparison:\n");
  for (int i = 0; i < 5; ++i) {
    const auto& shape = results[i].shape;
    const auto& held = usual_held(shape);
    print_line(describe(shape, held.slots).c_str(), shape, bench.run(shape, held, 31));
  }
  const Shape best = results[0].shape;
  print_line("each warp its own slot of one row", best, bench.run_warps(best, 31));
  print_line("copy engine (rows in order)", best, bench.run_engine(best, 31));
  std::printf(" the best by slots held:\n");
  for (const auto& held : helds) {
    if (fits(best, held.slots))
      print_line(describe(best, held.slots).c_str(), best, bench.run(best, held, 31));
  }
}

void print_by_sms(Bench& bench, Shape shape) {
  std::printf("\nby SMs, row %d B: %s; each warp its own slot\n", shape.row_bytes,
              describe(shape, usual_held(shape).slots).c_str());
  for (int sms : {1, 2, 4, 8, 12, 16, 24, 32}) {
    shape.sms = sms;
    const auto ring = bench.run(shape, usual_held(shape), 9), warps = bench.run_warps(shape, 9);
    std::printf("  %2d SMs  %7.1f GB/s %8.1f us | %7.1f GB/s %8.1f us\n", sms, rate(shape, ring.p50),
                ring.p50, rate(shape, warps.p50), warps.p50);
    std::fflush(stdout);
  }
}

}  // namespace

int main() {
  CHECK(cudaSetDevice(0));
  print_device();
  Bench bench;
  for (int row_bytes : {7168, 14336}) {
    std::vector<Result> at_8;
    for (int sms : {8, 24}) {
      const auto results = print_matrix(bench, row_bytes, sms);
      print_best(bench, results);
      if (sms == 8) at_8 = results;
    }
    print_by_sms(bench, at_8[0].shape);
  }
}
