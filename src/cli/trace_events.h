// Operations as events of the Trace Event Format, which Perfetto (ui.perfetto.dev) and Chrome read.
#pragma once

#include <cstdint>
#include <functional>

#include "cli/json.h"
#include "cli/trace_folder.h"

namespace sluice::cli {

// What there was to draw.
struct EventCounts {
  int ranks = 0;
  std::int64_t operations = 0;
  std::int64_t unfinished = 0;  // of these
  std::int64_t copies = 0;
  std::int64_t arrows = 0;
  std::int64_t lost = 0;        // operations that newer ones have overwritten
};

// Hands every event to `put`: a process for each rank, a thread for each channel, and threads for host copies; a slice
// (category "operation") for each operation and within it one for each part of its Attribution that is not 0, the part's
// name its category; an arrow (category "late") from the OPEN of each rank that was to blame for a wait to the end of the wait.
// Times are microseconds from the earliest call, exact to the nanosecond.
EventCounts write_events(const TraceFolder& folder, const std::function<void(const Json&)>& put);

}  // namespace sluice::cli
