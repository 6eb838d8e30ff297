// What this program takes from operator new, in all threads, and a heap that has nothing to give.
#pragma once

#include <cstdint>

namespace conformance {

struct Allocations {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  std::int64_t live = 0;  // not deleted yet
};

// Since the program began; nothing under a sanitizer, which keeps its own operator new.
Allocations allocations();

// The n-th allocation of this thread from now on throws std::bad_alloc, those behind it do not; 0: none does. Returns
// how many were still to come. Under a sanitizer nothing fails.
std::int64_t fail_allocation(std::int64_t n);

}  // namespace conformance
