// Bulk copies between global and shared memory, and memory to copy, for the probes of their rates.
#pragma once

#include <cuda/ptx>

#include "probe.h"

namespace probe {

constexpr int most_shared_bytes = 200 << 10;  // of a ring; the barriers come on top
constexpr int most_slots = 128;

__device__ inline void init_barrier(std::uint64_t& barrier, unsigned arrivals) {
  cuda::ptx::mbarrier_init(&barrier, arrivals);
}
__device__ inline void publish_barriers() {
  cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  __syncthreads();
}
__device__ inline void expect(std::uint64_t& barrier, unsigned bytes) {
  cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                       &barrier, bytes);
}
__device__ inline void arrive(std::uint64_t& barrier) { cuda::ptx::mbarrier_arrive(&barrier); }
__device__ inline void wait(std::uint64_t& barrier, unsigned parity) {
  while (!cuda::ptx::mbarrier_try_wait_parity(&barrier, parity)) {
  }
}
__device__ inline void load(char* shared, const char* global, unsigned bytes, std::uint64_t& barrier) {
  cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global, shared, global, bytes,
                           &barrier);
}
__device__ inline void store(char* global, const char* shared, unsigned bytes) {
  cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, global, shared, bytes);
}
__device__ inline void commit() { cuda::ptx::cp_async_bulk_commit_group(); }
template <int pending>
__device__ void wait_until_read() {
  cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<pending>{});
}
__device__ inline void wait_until_written() { cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<0>{}); }

static __global__ void fill(uint4* to, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    unsigned x = static_cast<unsigned>(i) * 2654435761u + 12345u;
    const auto next = [&] { return x ^= x << 13, x ^= x >> 17, x ^= x << 5; };
    to[i].x = next(), to[i].y = next(), to[i].z = next(), to[i].w = next();
  }
}

static __global__ void read_all(const uint4* from, std::size_t count, unsigned* sink) {
  unsigned sum = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const auto value = from[i];
    sum ^= value.x ^ value.y ^ value.z ^ value.w;
  }
  if (sum == 0x5eed5eedu) *sink = sum;
}

// Two blocks of memory, and a third to push them out of the L2. It is read, not written: dirty lines would
// be written back during what is measured.
class Arena {
 public:
  explicit Arena(std::size_t bytes) : bytes_(bytes) {
    CHECK(cudaMalloc(&from_, bytes));
    CHECK(cudaMalloc(&to_, bytes));
    CHECK(cudaMalloc(&other_, flush_bytes));
    CHECK(cudaMalloc(&sink_, sizeof *sink_));
    fill<<<512, 256>>>(reinterpret_cast<uint4*>(from_), bytes / 16);
    fill<<<512, 256>>>(reinterpret_cast<uint4*>(other_), flush_bytes / 16);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
  }
  ~Arena() {
    for (void* block : {static_cast<void*>(from_), static_cast<void*>(to_), static_cast<void*>(other_),
                        static_cast<void*>(sink_)})
      cudaFree(block);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const char* from() const { return from_; }
  char* to() const { return to_; }
  unsigned* sink() const { return sink_; }
  std::size_t bytes() const { return bytes_; }
  void flush(cudaStream_t stream) const {
    read_all<<<528, 512, 0, stream>>>(reinterpret_cast<const uint4*>(other_), flush_bytes / 16, sink_);
    CHECK(cudaGetLastError());
  }

 private:
  static constexpr std::size_t flush_bytes = std::size_t{512} << 20;
  std::size_t bytes_;
  char *from_ = nullptr, *to_ = nullptr, *other_ = nullptr;
  unsigned* sink_ = nullptr;
};

// Times of `queue(stream)` with a cold L2. The first run is not counted.
template <class Queue>
Spread time_us(const Arena& arena, cudaStream_t stream, int repetitions, Queue queue) {
  Timer timer;
  std::vector<double> times;
  for (int i = 0; i <= repetitions; ++i) {
    arena.flush(stream);
    timer.start(stream);
    queue(stream);
    timer.stop(stream);
    if (i > 0)
      times.push_back(timer.us());
    else
      timer.us();
  }
  return spread(times);
}

}  // namespace probe
