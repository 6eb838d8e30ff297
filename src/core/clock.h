// Reading the clocks of this machine.
#pragma once

#include <time.h>

#include <cstdint>

namespace sluice::core {

// Nanoseconds of CLOCK_MONOTONIC, CLOCK_REALTIME, or processor time.
inline std::int64_t read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace sluice::core
