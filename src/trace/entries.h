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

}  // namespace sluice::trace
