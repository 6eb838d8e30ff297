// The host's side of one channel: sees what has arrived, and gives up for a lane that waits too long, by plain
// stores only, since every call into CUDA may hang while a stream waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/cuda/shared.h"

namespace sluice::cuda {

class HostChannel {
 public:
  // `channels` of all ranks.
  HostChannel(int rank, int ranks, std::vector<SharedChannel*> channels)
      : rank_(rank), ranks_(ranks), channels_(std::move(channels)) {}

  bool arrived(core::Stage stage) const;
  // Operation and phase that the lane's tails have announced last.
  std::int64_t operation() const { return static_cast<std::int64_t>(progress() >> 4); }
  Phase phase() const { return static_cast<Phase>(progress() & 3u); }
  core::Status failure() const;
  bool given_up() const { return given_up_.load(std::memory_order_acquire); }

  // Looks once: at peers that have failed or gone, and at the clock. One thread.
  void watch(std::int64_t now_ns);
  // The lane cannot go on: the status, which says why, is everybody's now. Any thread.
  void break_off(const core::Status& status) { give_up(status); }

  void peer_gone(int peer) { gone_[peer].store(true, std::memory_order_release); }
  // From reaching an await; 0 = without end.
  void set_deadline_ns(std::int64_t ns) { deadline_ns_.store(ns, std::memory_order_relaxed); }
  // The communicator is being destroyed: no wait outlasts this moment.
  void leave_at(std::int64_t ns) { leave_at_ns_.store(ns, std::memory_order_relaxed); }

 private:
  SharedChannel& mine() const { return *channels_[static_cast<std::size_t>(rank_)]; }
  std::uint64_t progress() const;
  bool arrived(core::Stage stage, int peer) const;
  void give_up(const core::Status& status);
  void release_waits();
  static void write(SharedChannel& to, int from, const core::Status& status);

  int rank_;
  int ranks_;
  std::vector<SharedChannel*> channels_;  // by rank
  std::uint64_t seen_progress_ = 0;
  std::int64_t seen_at_ns_ = 0;
  std::mutex giving_up_;
  std::atomic<bool> given_up_{false};
  std::atomic<std::int64_t> deadline_ns_{0};
  std::atomic<std::int64_t> leave_at_ns_{0};
  std::atomic<bool> gone_[limits::ranks_per_node] = {};
};

}  // namespace sluice::cuda
