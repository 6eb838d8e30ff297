#include "engine/cpu/channel_flags.h"

#include <algorithm>
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
  theirs.flag[static_cast<int>(stage)][rank_].store(1, std::memory_order_release);
  theirs.ring();
}

int ChannelFlags::first_missing(Stage stage) const {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (!arrived(peer, stage)) return peer;
  }
  return -1;
}

Status ChannelFlags::missing_status(Stage stage, const Wait& wait, int peer, std::int64_t began) const {
  Status status;
  status.failed = 1;
  status.by = rank_;
  status.waiting_for = peer;
  status.stage = stage;
  status.kind = kind_;
  status.operation = operation_;
  status.awaited = operation_ - (wait.for_previous ? 1 : 0);
  status.waited_ms = (now_ns() - began) / 1'000'000;
  status.expected = ranks_ - 1;
  for (int p = 0; p < ranks_; ++p) status.arrived += p != rank_ && arrived(p, stage);
  return status;
}

// Whether the wait is over, one way or the other. `gone_` is read before the flag: a peer that signalled
// and then left has arrived.
bool ChannelFlags::settled(Stage stage, const Wait& wait, std::int64_t began) {
  if (own_failed_.load(std::memory_order_relaxed)) return true;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const bool gone = gone_[peer].load(std::memory_order_acquire);
    const Status told = told_by(peer);
    if (core::concerns(*this, told)) {
      give_up(told);
      return true;
    }
    if (arrived(peer, stage) || !gone) continue;
    Status status = missing_status(stage, wait, peer, began);
    status.cause = Cause::gone;
    give_up(status);
    return true;
  }
  if (first_missing(stage) < 0) return true;
  const std::int64_t left = nanoseconds_left(began);
  if (left != 0) return false;
  Status status = missing_status(stage, wait, first_missing(stage), began);
  if (status.waiting_for < 0) return true;  // it came at the last moment
  status.cause = leave_at_ns_.load(std::memory_order_relaxed) != 0 ? Cause::leaving : Cause::deadline;
  give_up(status);
  return true;
}

std::int64_t ChannelFlags::nanoseconds_left(std::int64_t began) const {
  const std::int64_t deadline = deadline_ns_.load(std::memory_order_relaxed);
  const std::int64_t leave_at = leave_at_ns_.load(std::memory_order_relaxed);
  if (deadline == 0 && leave_at == 0) return -1;
  std::int64_t end = deadline == 0 ? leave_at : began + deadline;
  if (leave_at != 0) end = std::min(end, leave_at);
  return std::max<std::int64_t>(end - now_ns(), 0);
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
  while (!settled(stage, wait, began)) {
    mine().sleepers.store(1, std::memory_order_seq_cst);
    const std::uint32_t seen = mine().doorbell.load(std::memory_order_seq_cst);
    if (!settled(stage, wait, began)) {
      futex_wait(mine().doorbell, seen, nanoseconds_left(began), Shared::yes);
    }
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

bool ChannelFlags::leave_now() {
  const std::int64_t at = leave_at_ns_.load(std::memory_order_relaxed);
  if (at == 0 || now_ns() < at) return false;
  Status status;
  status.failed = 1;
  status.cause = Cause::leaving;
  status.by = rank_;
  status.kind = kind_;
  status.operation = operation_;
  if (!own().failed) give_up(status);
  return true;
}

void ChannelFlags::peer_gone(int peer) {
  gone_[peer].store(true, std::memory_order_release);
  wake();
}

}  // namespace sluice::cpu
