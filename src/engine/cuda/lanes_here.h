// The lanes of this process, of all communicators, and what has to wait until there is none.
#pragma once

#include <functional>

namespace sluice::cuda {

class LanesHere {
 public:
  explicit LanesHere(int lanes);
  ~LanesHere();
  LanesHere(const LanesHere&) = delete;
  LanesHere& operator=(const LanesHere&) = delete;
  // With those that were there already.
  int count() const { return before_ + lanes_; }

 private:
  int lanes_;
  int before_;
};

// Unregistering and freeing memory is held up while any stream of the process waits (bench/probes/host_calls), also for
// a peer who waits for this thread. So `release` runs when no lane is left: now, or in whoever ends the last one.
void release_without_lanes(std::function<void()> release);

}  // namespace sluice::cuda
