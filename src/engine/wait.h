// How host threads wait, whatever the engine.
#pragma once

#include <time.h>

#include <cstdint>

namespace sluice::engine {

// The clock of all time stamps and deadlines: CLOCK_MONOTONIC, common to all processes of a machine.
inline std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Tells the processor that this is a spin.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace sluice::engine
