// The memory of a test: what it hands to calls, and how it reaches results. Plain memory, unless the suite
// runs on CUDA: then what calls name is pinned, and results lie on the GPU.
#pragma once

#include <cstddef>
#include <vector>

#include "cli/caller_memory.h"

namespace conformance {

// SLUICE_TEST_ENGINE=cuda.
bool on_cuda();

inline sluice::cli::MemoryKind memory_kind() {
  return on_cuda() ? sluice::cli::MemoryKind::pinned : sluice::cli::MemoryKind::host;
}

template <class T>
struct CallAllocator {
  using value_type = T;
  CallAllocator() = default;
  template <class U>
  CallAllocator(const CallAllocator<U>&) {}  // NOLINT: implicit on purpose
  T* allocate(std::size_t n) { return static_cast<T*>(sluice::cli::take(memory_kind(), n * sizeof(T))); }
  void deallocate(T* data, std::size_t n) { sluice::cli::give(memory_kind(), data, n * sizeof(T)); }
  friend bool operator==(const CallAllocator&, const CallAllocator&) { return true; }
};

// For whatever a call names. Not before the fork: only the child may touch CUDA.
template <class T>
using CallVector = std::vector<T, CallAllocator<T>>;
using CallBytes = CallVector<std::byte>;

// Results to the host, and back.
inline void fetch(void* host, const void* data, std::size_t bytes) {
  sluice::cli::fetch(memory_kind(), host, data, bytes);
}
inline void store(void* data, const void* host, std::size_t bytes) {
  sluice::cli::store(memory_kind(), data, host, bytes);
}

}  // namespace conformance
