#include "boot/pair_sockets.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <mutex>

namespace sluice::boot {
namespace {

// Never destroyed: a fork may happen while the process's statics are already gone.
struct Registry {
  std::mutex mutex;
  std::vector<const PairSockets*> alive;
  UniqueFd dead_end;  // while any is alive: a child of a process with many files could not make one
};

Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

UniqueFd make_dead_end() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return UniqueFd();
  ::close(ends[1]);
  return UniqueFd(ends[0]);
}

// Only calls that are safe in the child of a process with threads. A socket that cannot be replaced is closed: its number
// may then become another file's, but the peers must hear of the parent's death.
void disconnect_all() {
  const int dead_end = registry().dead_end.get();
  for (const PairSockets* sockets : registry().alive)
    for (const UniqueFd& fd : sockets->fds())
      if (fd && (dead_end < 0 || ::dup3(dead_end, fd.get(), O_CLOEXEC) < 0)) ::close(fd.get());
}

void register_fork_handlers() {
  static const int once = ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                                           [] {
                                             disconnect_all();
                                             registry().mutex.unlock();
                                           });
  static_cast<void>(once);
}

}  // namespace

PairSockets::PairSockets(std::vector<UniqueFd> fds) : fds_(std::move(fds)), owner_(::getpid()) {
  register_fork_handlers();
  const std::lock_guard lock(registry().mutex);
  const bool any = std::any_of(fds_.begin(), fds_.end(), [](const UniqueFd& fd) { return static_cast<bool>(fd); });
  if (any && !registry().dead_end) registry().dead_end = make_dead_end();
  registry().alive.push_back(this);
}

PairSockets::~PairSockets() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().alive, this);
  // Closed under the lock: else a fork in between would put dead sockets in the place of new files.
  fds_.clear();
  if (registry().alive.empty()) registry().dead_end = UniqueFd();
}

}  // namespace sluice::boot
