#include "engine/cuda/host_channel.h"

#include "core/patience.h"

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

Status HostChannel::failure() const {
  const Status by_kernels = read(mine().failure);
  return by_kernels.failed ? by_kernels : read(mine().told[rank_]);
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
  if (at != Phase::awaits_open && at != Phase::awaits_close) return;
  core::Patience wait{.rank = rank_, .ranks = ranks_, .began_ns = seen_at_ns_};
  wait.stage = at == Phase::awaits_open ? Stage::open : Stage::close;
  wait.kind = static_cast<OperationKind>((now >> 2) & 3u);
  wait.operation = wait.awaited = static_cast<std::int64_t>(now >> 4);
  wait.deadline_ns = deadline_ns_.load(std::memory_order_relaxed);
  wait.leave_at_ns = leave_at_ns_.load(std::memory_order_relaxed);
  const Status status = core::reason_to_give_up(wait, now_ns, [&](int peer) {
    return core::PeerSeen{gone_[peer].load(std::memory_order_acquire), read(mine().told[peer]),
                          arrived(wait.stage, peer)};
  });
  // What was seen is of that wait only if the lane has not gone on meanwhile: a peer whose flag was consumed may be gone.
  if (status.failed && progress() == now) give_up(status);
}

}  // namespace sluice::cuda
