// What the host reads of one operation. Lies in memory that host and device reach; written by the
// operation's kernels, read by the host after an event.
#pragma once

#include <cstdint>

#include "core/record.h"
#include "core/trace.h"

namespace sluice::core {

// Places for time stamps, nanoseconds of the engine's clock; 0 = not reached.
enum class Stamp : std::uint32_t { none, plan_end, open_sent, open_seen, close_sent, close_seen, end, count };

struct Report {
  Verdict verdict;
  Status failure;                      // of the channel, when the operation met one
  std::int64_t failed_at_step = 0;     // index in its script of the first step that found the failure
  IdFault fault;                       // found by plan here
  std::int64_t operation = 0;          // running number on the channel
  std::int64_t rows = 0;               // as DispatchResult::num_rows
  std::int64_t packed_rows = 0;
  std::int64_t dropped = 0;
  std::int64_t stamps[static_cast<int>(Stamp::count)] = {};
  std::int64_t* per_source = nullptr;  // [R]
  std::int64_t* per_expert = nullptr;  // [L]
  TraceCall trace;
};

}  // namespace sluice::core
