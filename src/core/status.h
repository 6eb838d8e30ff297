// How a failure of a channel is told: a status that travels with the flags and never goes away.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace sluice::core {

enum class Stage : std::uint32_t { open, close };

enum class OperationKind : std::uint32_t { none, dispatch, combine };

enum class Cause : std::uint32_t {
  none,
  deadline,    // a peer did not signal in time
  gone,        // a peer's process ended, or it left, before it signalled
  leaving,     // the communicator was destroyed while it waited; peers hear it with the next signal, if any
  block_lost,  // a block came from an operation that had failed on another channel
  device,      // the engine's device failed, with `code`
  no_memory,   // the process of that rank had none for a step
};

// What the rank that gave up knew. All zero: nothing has failed.
struct Status {
  std::uint32_t failed = 0;
  Cause cause = Cause::none;
  std::int32_t by = -1;           // the rank that gave up
  std::int32_t waiting_for = -1;  // the peer that it waited for
  Stage stage = Stage::open;
  OperationKind kind = OperationKind::none;
  std::int64_t operation = 0;     // in which it gave up: running number on the channel, from 1
  std::int64_t awaited = 0;       // whose signal was missing: the same, or the one before
  std::int64_t waited_ms = 0;
  std::int64_t arrived = 0;       // peers whose signal was there
  std::int64_t expected = 0;      // peers that it waited for, that one included
  std::int64_t code = 0;          // device
};

// What a step does when its kernel has ended, in this order, on behalf of the whole lane.
struct Tail {
  bool resets = false;
  bool signals = false;
  Stage reset = Stage::open;
  Stage signal = Stage::open;
};

// The two rules of failing, written once for all engines. `Channel` is the engine's view of one
// channel's flags and statuses:
//   Status own() const; void fail(const Status&);          the sticky state of this rank
//   Status told_by(int peer) const;                        what a peer has written here
//   void reset(Stage); void release();                     own flags; a release of the whole lane
//   void tell(int peer, const Status&); void raise(int peer, Stage);
//   std::int64_t operation() const;                        running number of the operation that runs
//   int rank() const; int ranks() const;

// A peer that gave up in a later operation has done its part of this one: only when this rank gets there
// is it concerned. (All ranks make the same sequence of operations.)
template <class Channel>
SLUICE_HD bool concerns(const Channel& channel, const Status& told) {
  return told.failed && told.operation <= channel.operation();
}

// Whether a kernel may do its work. A peer's failure becomes this rank's.
template <class Channel>
SLUICE_HD bool may_proceed(Channel& channel) {
  if (channel.own().failed) return false;
  SLUICE_ROLLED
  for (int peer = 0; peer < channel.ranks(); ++peer) {
    if (peer == channel.rank()) continue;
    const Status told = channel.told_by(peer);
    if (!concerns(channel, told)) continue;
    channel.fail(told);
    return false;
  }
  return true;
}

// Resets come before the signal and are covered by its release (model: reset_late, reset_unordered).
// After a failure nothing is reset, so that every later wait passes at once, and the peers are told
// before the flag that may wake them.
template <class Channel>
SLUICE_HD void finish_step(Channel& channel, const Tail& tail) {
  const Status own = channel.own();
  if (tail.resets && !own.failed) channel.reset(tail.reset);
  if (!tail.signals) return;
  channel.release();
  SLUICE_ROLLED
  for (int peer = 0; peer < channel.ranks(); ++peer) {
    if (peer == channel.rank()) continue;
    if (own.failed) channel.tell(peer, own);
    channel.raise(peer, tail.signal);
  }
}

}  // namespace sluice::core
