// Who wants to know that a peer has gone.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace sluice::boot {

class Watchers : public std::enable_shared_from_this<Watchers> {
 public:
  using OnGone = std::function<void(int rank)>;

  // Calls `on_gone` for the ranks that are gone already, in this thread, then for others as they go.
  // The token ends it, and waits while a call is running (unless that call is what drops it).
  std::shared_ptr<void> add(OnGone on_gone);

  // `rank` has gone; only the first time counts.
  void gone(int rank);

 private:
  struct Watcher;
  void remove(const Watcher* watcher);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Watcher>> watchers_;
  std::vector<int> gone_;
};

}  // namespace sluice::boot
