#include "core/trace.h"

#include <time.h>

namespace sluice::core {

namespace {

std::int64_t read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

TraceCall trace_call(const TraceRing& ring, int channel) {
  if (!ring.words) return {};
  return {.ring = ring, .channel = channel, .called_ns = read_clock(CLOCK_MONOTONIC),
          .thread_cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID), .process_cpu_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID)};
}

}  // namespace sluice::core
