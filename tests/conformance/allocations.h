// What this program takes from operator new, in all threads; it asks failing_allocation.h, too.
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

}  // namespace conformance
