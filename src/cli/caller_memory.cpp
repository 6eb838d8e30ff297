#include "cli/caller_memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#if defined(SLUICE_CUDA)
#include <cuda_runtime.h>

#include "cli/cuda_error.h"
#endif

namespace sluice::cli {
namespace {

#if defined(SLUICE_CUDA)

int current_gpu() {
  int gpu = 0;
  expect(cudaGetDevice(&gpu), "cudaGetDevice");
  return gpu;
}

void* new_slab(MemoryKind kind, std::size_t bytes) {
  void* data = nullptr;
  if (kind == MemoryKind::device)
    expect(cudaMalloc(&data, bytes), "cudaMalloc");
  else
    expect(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "cudaHostAlloc");
  return data;
}

// Ranks that are threads wait for each other, so a copy must wait for no stream but its own; one stream for
// the whole process, because streams share a few hardware queues.
void copy(void* to, const void* from, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[current_gpu()];
  if (stream == nullptr)
    expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  expect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  expect(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void choose_gpu(int local_rank) {
  int gpus = 0;
  expect(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  expect(cudaSetDevice(local_rank % gpus), "cudaSetDevice");
}

#else

[[noreturn]] void no_cuda() { throw std::runtime_error("this build has no CUDA: no memory for a GPU"); }
int current_gpu() { no_cuda(); }
void* new_slab(MemoryKind, std::size_t) { no_cuda(); }
void copy(void*, const void*, std::size_t) { no_cuda(); }
void choose_gpu(int) { no_cuda(); }

#endif

// Blocks of a power of two each, cut from slabs.
class Pool {
 public:
  explicit Pool(MemoryKind kind) : kind_(kind) {}

  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& free = free_[power_of(bytes)];
    if (free.empty()) return cut(std::size_t{1} << power_of(bytes));
    void* data = free.back();
    free.pop_back();
    return data;
  }

  void give(void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    free_[power_of(bytes)].push_back(data);
  }

 private:
  static constexpr std::size_t slab_bytes = std::size_t{64} << 20;

  static std::size_t power_of(std::size_t bytes) {
    return static_cast<std::size_t>(std::bit_width(std::max<std::size_t>(bytes, 256) - 1));
  }

  void* cut(std::size_t bytes) {
    if (left_ < bytes) {
      const std::size_t slab = std::max(bytes, slab_bytes);
      next_ = static_cast<std::byte*>(new_slab(kind_, slab));  // may throw: then nothing is left
      left_ = slab;
    }
    void* data = next_;
    next_ += bytes;
    left_ -= bytes;
    return data;
  }

  MemoryKind kind_;
  std::mutex mutex_;
  std::array<std::vector<void*>, 64> free_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
};

// Pools stay for ever: an operation may return memory while the process ends.
Pool& pool_of(MemoryKind kind) {
  static std::mutex mutex;
  static auto& pools = *new std::map<int, Pool>;
  const int gpu = kind == MemoryKind::device ? current_gpu() : -1;
  const std::lock_guard lock(mutex);
  return pools.try_emplace(gpu, kind).first->second;
}

}  // namespace

MemoryKind memory_kind(const std::string& engine) {
  return engine == "cuda" ? MemoryKind::device : MemoryKind::host;
}

void use_gpu_of(int local_rank) { choose_gpu(local_rank); }

void* take(MemoryKind kind, std::size_t bytes) {
  if (kind == MemoryKind::host) return ::operator new(bytes);
  return pool_of(kind).take(bytes);
}

void give(MemoryKind kind, void* data, std::size_t bytes) {
  if (kind == MemoryKind::host) return ::operator delete(data);
  pool_of(kind).give(data, bytes);
}

std::shared_ptr<void> share(MemoryKind kind, std::size_t bytes) {
  if (kind == MemoryKind::host) return {::operator new(bytes), [](void* data) { ::operator delete(data); }};
  Pool& pool = pool_of(kind);  // the last owner may go in a thread with another current GPU
  return {pool.take(bytes), [&pool, bytes](void* data) { pool.give(data, bytes); }};
}

void fetch(MemoryKind kind, void* host, const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  kind == MemoryKind::host ? static_cast<void>(std::memcpy(host, data, bytes)) : copy(host, data, bytes);
}

void store(MemoryKind kind, void* data, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  kind == MemoryKind::host ? static_cast<void>(std::memcpy(data, host, bytes)) : copy(data, host, bytes);
}

}  // namespace sluice::cli
