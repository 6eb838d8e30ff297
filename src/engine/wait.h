// How host threads wait, whatever the engine.
#pragma once

#include <cstdint>

#include "core/clock.h"

namespace sluice::engine {

// The clock of all time stamps and deadlines: CLOCK_MONOTONIC, common to all processes of a machine.
inline std::int64_t now_ns() { return core::read_clock(CLOCK_MONOTONIC); }

// Tells the processor that this is a spin.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace sluice::engine
