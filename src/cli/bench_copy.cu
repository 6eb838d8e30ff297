// The two kernels of bench_copy_gpu.h: what dispatch and combine must move, and nothing else.
#include <cuda/atomic>
#include <cuda/ptx>
#include <cuda_runtime.h>

#include <algorithm>

#include "cli/bench_copy_gpu.h"
#include "cli/cuda_error.h"
#include "cli/gpu_stream.h"

namespace sluice::cli {
namespace {

namespace ptx = cuda::ptx;

constexpr std::int64_t all_slots_bytes = 200 * 1024;  // of all slots together
constexpr std::int64_t most_chunk_bytes = 24 * 1024;
constexpr int most_slots = 64;
constexpr int stores_in_flight = 3;  // stores that may still be reading their slots
constexpr int warp_threads = 32;

struct Ring {
  std::byte* slots;
  std::uint64_t* full;   // loaded
  std::uint64_t* empty;  // stored
};

__device__ Ring ring_of(const GpuCopyArgs& args) {
  extern __shared__ __align__(128) std::byte shared[];
  auto* barriers = reinterpret_cast<std::uint64_t*>(shared + all_slots_bytes);
  return {shared, barriers, barriers + args.slots};
}

__device__ void await(std::uint64_t* barrier, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

// Calls each(from, to, bytes) for the chunks of a row, or of a few.
template <class Each>
__device__ void each_chunk(const GpuCopyArgs& args, std::int64_t all_bytes, const std::byte* from, std::byte* to, Each& each) {
  for (std::int64_t begin = 0; begin < all_bytes; begin += args.chunk_bytes) {
    const std::int64_t left = all_bytes - begin;
    const auto bytes = static_cast<std::uint32_t>(left < args.chunk_bytes ? left : args.chunk_bytes);
    each(from == nullptr ? nullptr : from + begin, to == nullptr ? nullptr : to + begin, bytes);
  }
}

// dispatch: rows out of own memory, read round and round, into the next rank's window.
template <class Each>
__device__ void each_move_out(const GpuCopyArgs& args, Each& each) {
  if (args.tokens == 0) return;
  std::byte* to = args.windows[(args.rank + 1) % args.ranks];
  const std::int64_t end = args.rows * (blockIdx.x + 1) / gridDim.x;
  std::int64_t row = args.rows * blockIdx.x / gridDim.x, token = row % args.tokens;
  while (row < end) {
    const std::int64_t rows = min(args.rows_at_once, min(end - row, args.tokens - token));
    each_chunk(args, rows * args.row_bytes, args.own + token * args.row_bytes, to + row * args.row_bytes, each);
    row += rows;
    token += rows;
    if (token == args.tokens) token = 0;
  }
}

// combine: rows out of the peers' windows; the last of a token's rows is stored. A token without rows
// stores what happens to lie in its slot.
template <class Each>
__device__ void each_move_home(const GpuCopyArgs& args, Each& each) {
  if (args.tokens == 0) return;
  const int peers = args.ranks > 1 ? args.ranks - 1 : 1;
  const std::int64_t begin = args.tokens * blockIdx.x / gridDim.x, end = args.tokens * (blockIdx.x + 1) / gridDim.x;
  // Row i comes from peer i % peers; a division per row would take longer than the row.
  std::int64_t i = begin * args.rows / args.tokens, of_peer = i / peers;
  int peer = static_cast<int>(i % peers);
  std::int64_t left_over = begin * args.rows % args.tokens;
  const std::int64_t each_token = args.rows / args.tokens, rest = args.rows % args.tokens;
  for (std::int64_t t = begin; t < end; ++t) {
    std::int64_t rows = each_token;
    left_over += rest;
    if (left_over >= args.tokens) {
      left_over -= args.tokens;
      ++rows;
    }
    std::byte* to = args.home + t * args.row_bytes;
    if (rows == 0) each_chunk(args, args.row_bytes, nullptr, to, each);
    for (; rows > 0; --rows) {
      int source = args.rank + 1 + peer;
      if (source >= args.ranks) source -= args.ranks;
      each_chunk(args, args.row_bytes, args.windows[args.ranks > 1 ? source : 0] + of_peer * args.row_bytes, rows == 1 ? to : nullptr, each);
      if (++peer == peers) {
        peer = 0;
        ++of_peer;
      }
    }
  }
}

template <bool combine, class Each>
__device__ void each_move(const GpuCopyArgs& args, Each each) {
  if constexpr (combine)
    each_move_home(args, each);
  else
    each_move_out(args, each);
}

template <bool combine>
__device__ void load(const GpuCopyArgs& args, const Ring& ring) {
  std::uint32_t slot = 0, turn = 0;
  each_move<combine>(args, [&](const std::byte* from, std::byte*, std::uint32_t bytes) {
    await(&ring.empty[slot], (turn & 1) ^ 1);
    if (from != nullptr) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &ring.full[slot], bytes);
      ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, ring.slots + slot * args.chunk_bytes, from, bytes,
                         &ring.full[slot]);
    } else {
      ptx::mbarrier_arrive(&ring.full[slot]);
    }
    if (++slot == static_cast<std::uint32_t>(args.slots)) slot = 0, ++turn;
  });
}

template <bool combine>
__device__ void store(const GpuCopyArgs& args, const Ring& ring) {
  const auto slots = static_cast<std::uint32_t>(args.slots);
  std::uint32_t slot = 0, turn = 0, begun = 0, read = 0;
  each_move<combine>(args, [&](const std::byte*, std::byte* to, std::uint32_t bytes) {
    await(&ring.full[slot], turn & 1);
    if (to != nullptr)
      ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, to, ring.slots + slot * args.chunk_bytes, bytes);
    ptx::cp_async_bulk_commit_group();
    if (++slot == slots) slot = 0, ++turn;
    if (++begun <= stores_in_flight) return;
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<stores_in_flight>{});
    ptx::mbarrier_arrive(&ring.empty[read]);
    if (++read == slots) read = 0;
  });
  ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
}

// Two warps: one thread loads, one stores.
template <bool combine>
__global__ void __launch_bounds__(2 * warp_threads) copy_kernel(const __grid_constant__ GpuCopyArgs args) {
  const Ring ring = ring_of(args);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * args.slots; ++i) ptx::mbarrier_init(&ring.full[i], 1);  // `empty` comes behind
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  if (threadIdx.x == 0) load<combine>(args, ring);
  if (threadIdx.x == warp_threads) store<combine>(args, ring);
}

__global__ void sweep_kernel(const unsigned* words, std::size_t count) {
  unsigned sum = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count; i += std::size_t{gridDim.x} * blockDim.x)
    sum |= __ldcg(words + i);
  if (sum != 0) __nanosleep(0);  // so that the words are read
}

__global__ void gate_kernel(const unsigned* opened) {
  cuda::atomic_ref<const unsigned, cuda::thread_scope_system> word(*opened);
  while (word.load() == 0) {
  }
}

}  // namespace

void cut_slots(GpuCopyArgs& args) {
  const std::int64_t chunks = (args.row_bytes + most_chunk_bytes - 1) / most_chunk_bytes;
  args.rows_at_once = args.combine ? 1 : std::max<std::int64_t>(1, most_chunk_bytes / args.row_bytes);
  args.chunk_bytes = ((args.rows_at_once * args.row_bytes + chunks - 1) / chunks + 15) / 16 * 16;
  args.slots = static_cast<int>(std::min<std::int64_t>(most_slots, all_slots_bytes / args.chunk_bytes));
}

void launch_gpu_copy(const GpuCopyArgs& args, int blocks, void* stream) {
  const auto kernel = args.combine ? copy_kernel<true> : copy_kernel<false>;
  const int bytes = static_cast<int>(all_slots_bytes) + 2 * most_slots * static_cast<int>(sizeof(std::uint64_t));
  expect(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
  kernel<<<blocks, 2 * warp_threads, bytes, static_cast<cudaStream_t>(stream)>>>(args);
  expect(cudaGetLastError(), "the launch of the yardstick's kernel");
}

void launch_gpu_sweep(const unsigned* words, std::size_t count, void* stream) {
  sweep_kernel<<<264, 1024, 0, static_cast<cudaStream_t>(stream)>>>(words, count);
  expect(cudaGetLastError(), "the launch of a kernel that empties the L2");
}

void launch_gpu_gate(const unsigned* opened, void* stream) {
  gate_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(opened);
  expect(cudaGetLastError(), "the launch of a kernel that waits for the start");
}

}  // namespace sluice::cli
