#include "engine/cpu/channel_flags.h"

#include <utility>

#include "engine/cpu/futex.h"
#include "engine/wait.h"

namespace sluice::cpu {

using core::Cause;
using core::Stage;
using core::Status;
using engine::now_ns;

void SharedFlags::initialise(int rank, int ranks) {
  for (int peer = 0; peer < limits::ranks_per_node; ++peer) {
    const bool is_peer = peer < ranks && peer != rank;
    flag[static_cast<int>(Stage::open)][peer].store(is_peer ? 0 : 1, std::memory_order_relaxed);
    flag[static_cast<int>(Stage::close)][peer].store(1, std::memory_order_relaxed);
    told[peer].failed.store(0, std::memory_order_relaxed);
    closed_ns[peer].store(0, std::memory_order_relaxed);
  }
  doorbell.store(0, std::memory_order_relaxed);
  sleepers.store(0, std::memory_order_relaxed);
}

// The doorbell moves before `sleepers` is read, and a sleeper shows itself before it reads the doorbell:
// one of the two sees the other, so no ring is lost.
void SharedFlags::ring() {
  doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(doorbell, Shared::yes);
}

ChannelFlags::ChannelFlags(int rank, int ranks, std::vector<SharedFlags*> windows)
    : rank_(rank), ranks_(ranks), windows_(std::move(windows)), told_(static_cast<std::size_t>(ranks)) {}

Status ChannelFlags::own() const { return own_failed_.load(std::memory_order_acquire) ? own_ : Status{}; }

void ChannelFlags::fail(const Status& status) {
  if (own_failed_.load(std::memory_order_relaxed)) return;
  own_ = status;
  own_failed_.store(true, std::memory_order_release);
}

Status ChannelFlags::told_by(int peer) const {
  const SharedFlags::Told& told = mine().told[peer];
  return told.failed.load(std::memory_order_acquire) != 0 ? told.status : Status{};
}

void ChannelFlags::reset(Stage stage) {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_) mine().flag[static_cast<int>(stage)][peer].store(0, std::memory_order_relaxed);
  }
}

void ChannelFlags::tell(int peer, const Status& status) {
  if (std::exchange(told_[static_cast<std::size_t>(peer)], std::uint8_t{1}) != 0) return;
  SharedFlags::Told& told = windows_[static_cast<std::size_t>(peer)]->told[rank_];
  told.status = status;
  told.failed.store(1, std::memory_order_release);
}

void ChannelFlags::raise(int peer, Stage stage) {
  SharedFlags& theirs = *windows_[static_cast<std::size_t>(peer)];
  if (stage == Stage::close) theirs.closed_ns[rank_].store(closing_at_ns_, std::memory_order_relaxed);
  theirs.flag[static_cast<int>(stage)][rank_].store(1, std::memory_order_release);
  theirs.ring();
}

int ChannelFlags::first_missing(Stage stage) const {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (!arrived(peer, stage)) return peer;
  }
  return -1;
}

core::Patience ChannelFlags::patience(Stage stage, const Wait& wait, std::int64_t began) const {
  core::Patience patience{.rank = rank_, .ranks = ranks_, .stage = stage, .kind = kind_, .began_ns = began};
  patience.operation = operation_;
  patience.awaited = operation_ - (wait.for_previous ? 1 : 0);
  patience.deadline_ns = deadline_ns_.load(std::memory_order_relaxed);
  patience.leave_at_ns = leave_at_ns_.load(std::memory_order_relaxed);
  return patience;
}

// Whether the wait is over, one way or the other.
bool ChannelFlags::settled(const core::Patience& wait) {
  if (own_failed_.load(std::memory_order_relaxed)) return true;
  const Status status = core::reason_to_give_up(wait, now_ns(), [&](int peer) {
    return core::PeerSeen{gone_[peer].load(std::memory_order_acquire), told_by(peer),
                          arrived(peer, wait.stage)};
  });
  if (status.failed) give_up(status);
  return status.failed || first_missing(wait.stage) < 0;
}

bool ChannelFlags::arrived_soon(Stage stage, std::int64_t spin_ns) const {
  if (first_missing(stage) < 0) return true;
  const std::int64_t began = now_ns();
  for (int i = 1; i % 16 != 0 || now_ns() - began < spin_ns; ++i) {
    engine::relax();
    if (first_missing(stage) < 0) return true;
  }
  return false;
}

void ChannelFlags::await(Stage stage, const Wait& wait) {
  const std::int64_t began = now_ns();
  if (arrived_soon(stage, wait.spin_ns)) return;
  while (!settled(patience(stage, wait, began))) {
    mine().sleepers.store(1, std::memory_order_seq_cst);
    const std::uint32_t seen = mine().doorbell.load(std::memory_order_seq_cst);
    const core::Patience patient = patience(stage, wait, began);
    if (!settled(patient)) futex_wait(mine().doorbell, seen, patient.left_ns(now_ns()), Shared::yes);
    mine().sleepers.store(0, std::memory_order_relaxed);
  }
}

void ChannelFlags::give_up(const Status& status) {
  fail(status);
  for (auto& stage : mine().flag) {
    for (int peer = 0; peer < ranks_; ++peer) stage[peer].store(1, std::memory_order_release);
  }
  // The next tail tells the peers too; those that wait for somebody else hear it now.
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || status.cause == Cause::leaving) continue;
    tell(peer, status);
    windows_[static_cast<std::size_t>(peer)]->ring();
  }
}

void ChannelFlags::give_up(Cause cause) {
  if (own().failed) return;
  Status status;
  status.failed = 1;
  status.cause = cause;
  status.by = rank_;
  status.kind = kind_;
  status.operation = operation_;
  give_up(status);
}

bool ChannelFlags::leave_now() {
  const std::int64_t at = leave_at_ns_.load(std::memory_order_relaxed);
  if (at == 0 || now_ns() < at) return false;
  give_up(Cause::leaving);
  return true;
}

void ChannelFlags::peer_gone(int peer) {
  gone_[peer].store(true, std::memory_order_release);
  wake();
}

}  // namespace sluice::cpu
