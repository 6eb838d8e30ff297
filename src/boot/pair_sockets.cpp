#include "boot/pair_sockets.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <mutex>

namespace sluice::boot {
namespace {

// Never destroyed: a fork may happen while the process's statics are already gone.
struct Registry {
  std::mutex mutex;
  std::vector<const PairSockets*> alive;
};

Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

// Only calls that are safe in the child of a process with threads.
void disconnect_all() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return;
  ::close(ends[1]);
  for (const PairSockets* sockets : registry().alive)
    for (const UniqueFd& fd : sockets->fds())
      if (fd) ::dup3(ends[0], fd.get(), O_CLOEXEC);
  ::close(ends[0]);
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
  registry().alive.push_back(this);
}

PairSockets::~PairSockets() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().alive, this);
  // Closed under the lock: else a fork in between would put dead sockets in the place of new files.
  fds_.clear();
}

}  // namespace sluice::boot
