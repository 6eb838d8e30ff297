// What ranks share besides rows, for host and device: per channel, flags and statuses in pinned host memory
// that all processes of the node map, and the state of the channel in the rank's own device memory.
#pragma once

#include <cstdint>

#include <sluice/limits.h>

#include "core/record.h"
#include "core/report.h"
#include "core/status.h"

namespace sluice::cuda {

inline constexpr int flag_words = limits::ranks_per_node / 8;

// What the watchdog knows of a lane: the operation that runs and what it waits for. Written by the tails.
enum class Phase : std::uint32_t { idle, awaits_open, moves, awaits_close };

SLUICE_HD constexpr std::uint64_t progress_of(std::int64_t operation, core::OperationKind kind, Phase phase) {
  return (static_cast<std::uint64_t>(operation) << 4) | (static_cast<std::uint64_t>(kind) << 2) |
         static_cast<std::uint64_t>(phase);
}

// One per (rank, channel), in pinned host memory: the device waits on it and stores to it over the bus, and
// the host can always release a lane by plain stores.
struct SharedChannel {
  // A byte per peer, set to 1 by the peer; one wait compares a word of eight. Bytes without a peer, and the
  // own one, are 1 for ever.
  alignas(64) std::uint64_t flags[2][flag_words];
  // Not 0 once any status below was written: the one word that every awaited kernel reads.
  alignas(64) std::uint32_t alarm;
  std::uint64_t progress;  // by the owner's tails
  std::uint64_t reached;   // by the owner's tails: the last point of the lane that the host was told of
  struct Told {
    std::uint32_t failed;  // after `status`
    core::Status status;
  };
  Told told[limits::ranks_per_node];  // by that rank; the own entry by the watchdog
  Told failure;  // the sticky failure of the channel, by the owner's kernels for its host
};

inline constexpr std::uint64_t all_arrived = 0x0101010101010101u;

// The word of flags in which only the bytes of `peers` ranks other than `rank` are 0.
SLUICE_HD constexpr std::uint64_t reset_word(int word, int rank, int ranks) {
  const int present = ranks - 8 * word;
  const std::uint64_t absent = present < 8 ? all_arrived << (8 * present) : 0;
  return rank / 8 == word ? absent | std::uint64_t{1} << (8 * (rank % 8)) : absent;
}
SLUICE_HD constexpr int words_of(int ranks) { return (ranks + 7) / 8; }

// One per channel, in device memory of the owner.
struct DeviceChannel {
  std::uint32_t failed;  // sticky; `failure` says why
  core::Status failure;
  std::uint32_t ticket;  // blocks of the running kernel that have finished
  core::Outcome outcome;  // of the operation that runs, by agree
  std::int64_t operation;
  // The counts of agree, where later kernels read them without the bus.
  std::int64_t rows, packed_rows, dropped;
  std::uint64_t fault_at;  // lowest illegal slot that plan has seen, else no_fault
  std::uint8_t told[limits::ranks_per_node];  // peers that know of the failure
};
inline constexpr std::uint64_t no_fault = ~std::uint64_t{0};

}  // namespace sluice::cuda
