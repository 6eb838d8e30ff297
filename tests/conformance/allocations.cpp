#include "allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include "failing_allocation.h"
#include "sanitizers.h"

#if SLUICE_SANITIZED

namespace conformance {
Allocations allocations() { return {}; }
}  // namespace conformance

#else

namespace {

std::atomic<std::int64_t> calls{0}, bytes{0}, deleted{0};

void* counted(void* memory, std::size_t size) {
  if (allocation_fails()) {
    std::free(memory);
    memory = nullptr;
  }
  if (memory == nullptr) throw std::bad_alloc();
  calls.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(static_cast<std::int64_t>(size), std::memory_order_relaxed);
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) deleted.fetch_add(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

namespace conformance {
Allocations allocations() { return {calls.load(), bytes.load(), calls.load() - deleted.load()}; }
}  // namespace conformance

// The other forms of the standard library call these.
void* operator new(std::size_t size) { return counted(std::malloc(size), size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(unit, (size + unit - 1) / unit * unit), size);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

#endif
