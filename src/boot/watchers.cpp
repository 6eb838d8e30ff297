#include "boot/watchers.h"

#include <algorithm>

namespace sluice::boot {

// Recursive, so that a callback may drop its own token.
struct Watchers::Watcher {
  std::recursive_mutex mutex;
  bool active = true;
  OnGone on_gone;
  std::vector<int> told;

  void tell(int rank) {
    const std::lock_guard lock(mutex);
    if (!active || std::find(told.begin(), told.end(), rank) != told.end()) return;
    told.push_back(rank);
    // It may throw into a destructor or end our thread, so what it throws goes nowhere.
    try { on_gone(rank); } catch (...) {}
  }
};

std::shared_ptr<void> Watchers::add(OnGone on_gone) {
  auto watcher = std::make_shared<Watcher>();
  watcher->on_gone = std::move(on_gone);
  std::vector<int> gone_already;
  {
    const std::lock_guard lock(mutex_);
    watchers_.push_back(watcher);
    gone_already = gone_;
  }
  std::shared_ptr<void> token(watcher.get(), [self = shared_from_this(), watcher](void*) {
    {
      const std::lock_guard lock(watcher->mutex);
      watcher->active = false;
    }
    self->remove(watcher.get());
  });
  for (const int rank : gone_already) watcher->tell(rank);
  return token;
}

void Watchers::gone(int rank) {
  std::vector<std::shared_ptr<Watcher>> now;
  {
    const std::lock_guard lock(mutex_);
    if (std::find(gone_.begin(), gone_.end(), rank) != gone_.end()) return;
    gone_.push_back(rank);
    now = watchers_;
  }
  for (const auto& watcher : now) watcher->tell(rank);
}

void Watchers::remove(const Watcher* watcher) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watchers_, [&](const auto& w) { return w.get() == watcher; });
}

}  // namespace sluice::boot
