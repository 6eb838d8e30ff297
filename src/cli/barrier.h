// A barrier in shared memory between the threads or processes of one machine: much cheaper than a
// group's, so that ranks leave it close together.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::cli {

enum class WaitFor {
  spin,   // a moment, and every rank has a core: spin, then give the core away, then sleep
  yield,  // a moment, but cores are short: give the core away, then sleep
  sleep,  // long, and without end: sleep at once
};

// Zeroed memory is a barrier that nobody has entered.
struct alignas(128) SharedBarrier {
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> abandoned;
  alignas(64) std::atomic<std::uint32_t> generation;

  // Returns when all `ranks` have come. Throws PeerError after `abandon`, or when a rank does not come
  // for a minute (sleep: never).
  void wait(int ranks, WaitFor form);

  // Wakes all who wait, now and later: this rank will not come.
  void abandon();
};

}  // namespace sluice::cli
