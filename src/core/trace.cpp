#include "core/trace.h"

#include "core/clock.h"

namespace sluice::core {

TraceCall trace_call(const TraceRing& ring, int channel) {
  if (!ring.words) return {};
  return {.ring = ring, .channel = channel, .called_ns = read_clock(CLOCK_MONOTONIC),
          .thread_cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID), .process_cpu_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID)};
}

}  // namespace sluice::core
