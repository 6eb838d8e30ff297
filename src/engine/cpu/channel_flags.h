// The flags of one (rank, channel): what lies in the window, and the channel of core/status.h on top.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include <sluice/limits.h>

#include "core/patience.h"

namespace sluice::cpu {

// In the owner's window, one per channel. Binary flags, set by a peer and reset by the owner.
struct SharedFlags {
  alignas(64) std::atomic<std::uint8_t> flag[2][limits::ranks_per_node];  // [stage][peer]
  // Rung after each flag; the owner sleeps on it.
  alignas(64) std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> sleepers;
  struct Told {
    std::atomic<std::uint32_t> failed;  // released after `status`
    core::Status status;
  };
  alignas(64) Told told[limits::ranks_per_node];
  // When each peer sent its CLOSE: written before the flag, read after it by a tracer.
  std::atomic<std::int64_t> closed_ns[limits::ranks_per_node];

  // Flags of peers: OPEN 0, CLOSE 1. Bytes without a peer, and the own one, are 1 for ever.
  void initialise(int rank, int ranks);
  void ring();
};

// This rank's side of a channel. Used by one thread at a time (whoever runs the lane), except own() by
// anyone and peer_gone() by the group's monitor.
class ChannelFlags {
 public:
  ChannelFlags(int rank, int ranks, std::vector<SharedFlags*> windows);

  // core/status.h
  core::Status own() const;
  void fail(const core::Status& status);
  core::Status told_by(int peer) const;
  void reset(core::Stage stage);
  void release() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  void tell(int peer, const core::Status& status);
  void raise(int peer, core::Stage stage);
  // What the next CLOSE tells the peers of its time.
  void closing_at(std::int64_t ns) { closing_at_ns_ = ns; }
  std::int64_t closing_at() const { return closing_at_ns_; }
  std::int64_t closed_ns(int peer) const { return mine().closed_ns[peer].load(std::memory_order_relaxed); }
  std::int64_t operation() const { return operation_; }
  core::OperationKind kind() const { return kind_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // The lane begins its next operation.
  void begin(core::OperationKind kind) {
    kind_ = kind;
    ++operation_;
  }

  struct Wait {
    bool for_previous = false;  // CLOSE of the operation before
    std::int64_t spin_ns = 0;
  };
  // Whether every peer has raised `stage`, spinning for at most `spin_ns`. Never fails.
  bool arrived_soon(core::Stage stage, std::int64_t spin_ns) const;

  // Blocks until every peer has raised `stage`, or the channel has failed: by what a peer told, by a
  // peer that is gone, or by the deadline, in which case this rank gives up.
  void await(core::Stage stage, const Wait& wait);

  // Gives up now: the status first, then the flags of both stages, for good.
  void give_up(const core::Status& status);
  // The same for what this rank met in the operation that runs, unless the channel has failed before.
  void give_up(core::Cause cause);

  void peer_gone(int peer);
  void wake() { mine().ring(); }
  // Nanoseconds from reaching an await; 0 = without end. Read while waiting.
  void set_deadline_ns(std::int64_t ns) { deadline_ns_.store(ns, std::memory_order_relaxed); wake(); }
  // Gives up when the moment of leave_at() has passed.
  bool leave_now();
  // The communicator is being destroyed: no wait outlasts this moment of engine::now_ns().
  void leave_at(std::int64_t ns) { leave_at_ns_.store(ns, std::memory_order_relaxed); wake(); }

 private:
  SharedFlags& mine() const { return *windows_[static_cast<std::size_t>(rank_)]; }
  bool arrived(int peer, core::Stage stage) const {
    return mine().flag[static_cast<int>(stage)][peer].load(std::memory_order_acquire) != 0;
  }
  int first_missing(core::Stage stage) const;
  core::Patience patience(core::Stage stage, const Wait& wait, std::int64_t began) const;
  bool settled(const core::Patience& wait);

  int rank_;
  int ranks_;
  std::vector<SharedFlags*> windows_;  // by rank
  std::vector<std::uint8_t> told_;     // peers that know of our failure
  core::OperationKind kind_ = core::OperationKind::none;
  std::int64_t operation_ = 0;
  std::int64_t closing_at_ns_ = 0;
  core::Status own_;                   // written once, before own_failed_
  std::atomic<bool> own_failed_{false};
  std::atomic<std::int64_t> deadline_ns_{0};
  std::atomic<std::int64_t> leave_at_ns_{0};
  std::atomic<bool> gone_[limits::ranks_per_node] = {};
};

}  // namespace sluice::cpu
