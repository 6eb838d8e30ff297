// From the words of a ring to operations.
#pragma once

#include <cstdint>
#include <vector>

#include <sluice/trace.h>

#include "core/trace.h"

namespace sluice::trace {

// Of all channels, by time of call. Entries that are written meanwhile are left out, those of running operations are in.
// `lost`, if given: operations that newer ones have overwritten.
std::vector<OperationTrace> read_ring(const core::TraceRing& ring, std::int64_t* lost = nullptr);

// Files may hold anything (promise F6): what no clock and no count can be is 0, so that differences and sums are numbers.
inline constexpr std::int64_t most_ns = std::int64_t{1} << 61, most_rows = std::int64_t{1} << 40, most_bytes = std::int64_t{1} << 50;
constexpr std::int64_t at_most(std::int64_t value, std::int64_t most) { return value >= 0 && value <= most ? value : 0; }

}  // namespace sluice::trace
