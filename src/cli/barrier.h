// A barrier in shared memory between the threads or processes of one machine: much cheaper than a
// group's, so that ranks leave it close together.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace sluice::cli {

enum class WaitFor {
  spin,   // a moment, and every rank has a core: spin, then give the core away, then sleep
  yield,  // a moment, but cores are short: give the core away, then sleep
  sleep,  // long: sleep at once
};

enum class Met {
  all,        // everybody has come
  abandoned,  // somebody will not come: see `abandon`
  late,       // somebody has not come in time; the barrier is of no more use
};

// Zeroed memory is a barrier that nobody has entered.
struct alignas(128) SharedBarrier {
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> abandoned;
  alignas(64) std::atomic<std::uint32_t> generation;

  // Waits until all `ranks` have come, at most `longest`; 0: without end.
  [[nodiscard]] Met wait(int ranks, WaitFor form, std::chrono::milliseconds longest = {});

  // Wakes all who wait, now and later: this rank will not come.
  void abandon();
};

}  // namespace sluice::cli
