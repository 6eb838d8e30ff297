// Memory that a caller of the library has on each engine: what calls may name, and how the host reaches
// results. Nothing here touches CUDA before one of these functions is called for another kind than `host`.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace sluice::cli {

enum class MemoryKind {
  host,
  pinned,  // host memory that a GPU reads and writes, too
  device,  // of the thread's current GPU
};

// The kind in which a program keeps what it hands to this engine.
MemoryKind memory_kind(const std::string& engine);

// Makes GPU `local_rank` of those that are visible, counted round and round, the current one of this thread.
void use_gpu_of(int local_rank);

// Memory at a multiple of 16 bytes (GPU: 256). GPU and pinned memory comes from slabs that are kept until
// the process ends: cudaFree and cudaFreeHost block while any stream waits for a peer. `give` takes it back
// for the next `take`; device memory goes back by itself with its last owner.
void* take(MemoryKind kind, std::size_t bytes);
void give(MemoryKind kind, void* data, std::size_t bytes);
std::shared_ptr<void> share(MemoryKind kind, std::size_t bytes);

// Copies between plain host memory and memory of an engine of this kind, arena results included. They wait
// for the copy and for nothing else.
void fetch(MemoryKind kind, void* host, const void* data, std::size_t bytes);
void store(MemoryKind kind, void* data, const void* host, std::size_t bytes);

}  // namespace sluice::cli
