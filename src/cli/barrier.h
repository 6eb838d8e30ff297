// A barrier in shared memory between the threads or processes of one machine: much cheaper than a
// group's, so that ranks leave it close together.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::cli {

// Zeroed memory is a barrier that nobody has entered.
struct alignas(128) SharedBarrier {
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> abandoned;
  alignas(64) std::atomic<std::uint32_t> generation;

  // Returns when all `ranks` have come. Spins where every rank can have a core, otherwise gives its core
  // away; sleeps when it takes long. Throws PeerError after `abandon`, or when a rank does not come for
  // a minute.
  void wait(int ranks, bool spin);

  // Wakes all who wait, now and later: this rank will not come.
  void abandon();
};

}  // namespace sluice::cli
