#include "engine/cuda/host_channel.h"

namespace sluice::cuda {

using core::Cause;
using core::OperationKind;
using core::Stage;
using core::Status;

namespace {

template <class T>
T load(T& word) {
  return std::atomic_ref<T>(word).load(std::memory_order_acquire);
}
template <class T>
void store(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
}

Status read(SharedChannel::Told& told) { return load(told.failed) != 0 ? told.status : Status{}; }

}  // namespace

std::uint64_t HostChannel::progress() const { return load(mine().progress); }

bool HostChannel::arrived(Stage stage) const {
  for (int w = 0; w < words_of(ranks_); ++w) {
    if (load(mine().flags[static_cast<int>(stage)][w]) != all_arrived) return false;
  }
  return true;
}

bool HostChannel::arrived(Stage stage, int peer) const {
  return ((load(mine().flags[static_cast<int>(stage)][peer / 8]) >> (8 * (peer % 8))) & 1u) != 0;
}

Status HostChannel::told_by(int peer) const { return read(mine().told[peer]); }

Status HostChannel::failure() const {
  const Status by_kernels = read(mine().failure);
  return by_kernels.failed ? by_kernels : read(mine().told[rank_]);
}

Status HostChannel::missing(Stage stage, int peer, std::int64_t now_ns) const {
  Status status;
  status.failed = 1;
  status.by = rank_;
  status.waiting_for = peer;
  status.stage = stage;
  status.kind = static_cast<OperationKind>((seen_progress_ >> 2) & 3u);
  status.operation = static_cast<std::int64_t>(seen_progress_ >> 4);
  status.awaited = status.operation;
  status.waited_ms = (now_ns - seen_at_ns_) / 1'000'000;
  status.expected = ranks_ - 1;
  for (int p = 0; p < ranks_; ++p) status.arrived += p != rank_ && arrived(stage, p);
  return status;
}

// A tail that resets a word may cross the release: it is made again until the lane has drained.
void HostChannel::release_waits() {
  for (auto& stage : mine().flags) {
    for (int w = 0; w < words_of(ranks_); ++w) store(stage[w], all_arrived);
  }
}

void HostChannel::write(SharedChannel& to, int from, const Status& status) {
  SharedChannel::Told& told = to.told[from];
  if (load(told.failed) != 0) return;
  told.status = status;
  store(told.failed, 1u);
  store(to.alarm, 1u);
}

// The status first, then the flags. Peers hear it now, not only with the next tail.
void HostChannel::give_up(const Status& status) {
  const std::lock_guard lock(giving_up_);
  if (given_up()) return;
  write(mine(), rank_, status);
  given_up_.store(true, std::memory_order_release);
  release_waits();
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_ && status.cause != Cause::leaving) write(*channels_[static_cast<std::size_t>(peer)], rank_, status);
  }
}

void HostChannel::watch(std::int64_t now_ns) {
  if (given_up()) return release_waits();
  const std::uint64_t now = progress();
  if (now != seen_progress_) {
    seen_progress_ = now;
    seen_at_ns_ = now_ns;
  }
  const auto at = static_cast<Phase>(now & 3u);
  const auto operation_now = static_cast<std::int64_t>(now >> 4);
  if (at != Phase::awaits_open && at != Phase::awaits_close) return;
  const Stage stage = at == Phase::awaits_open ? Stage::open : Stage::close;
  int first_missing = -1;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const bool gone = gone_[peer].load(std::memory_order_acquire);
    const Status told = told_by(peer);
    if (told.failed && told.operation <= operation_now) return give_up(told);
    if (arrived(stage, peer)) continue;
    if (gone) {
      Status status = missing(stage, peer, now_ns);
      status.cause = Cause::gone;
      return give_up(status);
    }
    if (first_missing < 0) first_missing = peer;
  }
  if (first_missing < 0) return;
  const std::int64_t deadline = deadline_ns_.load(std::memory_order_relaxed);
  const std::int64_t leave_at = leave_at_ns_.load(std::memory_order_relaxed);
  const bool leaving = leave_at != 0 && now_ns >= leave_at;
  if (!leaving && (deadline == 0 || now_ns - seen_at_ns_ < deadline)) return;
  Status status = missing(stage, first_missing, now_ns);
  status.cause = leave_at != 0 ? Cause::leaving : Cause::deadline;
  give_up(status);
}

}  // namespace sluice::cuda
