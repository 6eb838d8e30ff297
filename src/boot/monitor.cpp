#include "boot/monitor.h"

#include <poll.h>

#include <system_error>
#include <vector>

#include <fmt/core.h>
#include <sluice/errors.h>

#include "boot/signals_blocked.h"
#include "boot/sockets.h"

namespace sluice::boot {
namespace {

// Ends when the other end of `wake` is closed or all peers have gone.
void poll_until_closed(const PairSockets& sockets, Watchers& watchers, const UniqueFd& wake) {
  std::vector<pollfd> entries;
  for (const UniqueFd& fd : sockets.fds()) entries.push_back({fd.get(), POLLRDHUP, 0});
  entries.push_back({wake.get(), POLLRDHUP, 0});
  for (;;) {
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;  // a signal
    for (std::size_t r = 0; r + 1 < entries.size(); ++r) {
      if (entries.back().revents != 0) return;
      if (entries[r].revents == 0) continue;
      entries[r].fd = -1;
      entries[r].revents = 0;
      watchers.gone(static_cast<int>(r));
    }
    if (entries.back().revents != 0) return;
  }
}

}  // namespace

Monitor::Monitor(std::shared_ptr<const PairSockets> sockets) : sockets_(std::move(sockets)) {}

void Monitor::start() {
  if (thread_.joinable()) return;
  auto [ours, theirs] = make_pair_of_sockets();
  const SignalsBlocked blocked;
  try {
    // The thread owns all that it touches, so that it may outlive this object (see the destructor).
    thread_ = std::thread([sockets = sockets_, watchers = watchers_, wake = std::move(theirs)] {
      poll_until_closed(*sockets, *watchers, wake);
    });
  } catch (const std::system_error& error) {
    throw SystemError(fmt::format("the thread that notices lost peers cannot be started: {}; raise the limits of threads and of "
                                  "address space (ulimit -u, ulimit -v)", error.what()));
  }
  wake_ = std::move(ours);
}

std::shared_ptr<void> Monitor::watch(Watchers::OnGone on_gone) {
  const auto& fds = sockets_->fds();
  {
    const std::lock_guard lock(mutex_);
    start();
  }
  // Those that have gone before the thread ran for the first time are told in this call too.
  for (std::size_t r = 0; r < fds.size(); ++r)
    if (fds[r] && hung_up(fds[r].get())) watchers_->gone(static_cast<int>(r));
  return watchers_->add(std::move(on_gone));
}

Monitor::~Monitor() {
  if (!thread_.joinable()) return;
  // In a forked copy the thread does not exist: it can be neither joined nor detached, so its handle is left.
  if (sockets_->is_forked_copy()) {
    new std::thread(std::move(thread_));
    return;
  }
  wake_ = UniqueFd();
  // A callback may drop the last handle of its group: the thread cannot wait for itself.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

}  // namespace sluice::boot
