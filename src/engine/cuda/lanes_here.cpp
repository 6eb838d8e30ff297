#include "engine/cuda/lanes_here.h"

#include <mutex>
#include <utility>
#include <vector>

namespace sluice::cuda {

namespace {

struct Here {
  std::mutex mutex;
  int lanes = 0;
  std::vector<std::function<void()>> releases;
};

// Never destroyed: results may outlive everything else.
Here& here() {
  static Here& once = *new Here;
  return once;
}

}  // namespace

LanesHere::LanesHere(int lanes) : lanes_(lanes) {
  const std::lock_guard lock(here().mutex);
  before_ = std::exchange(here().lanes, here().lanes + lanes);
}

LanesHere::~LanesHere() {
  std::vector<std::function<void()>> releases;
  {
    const std::lock_guard lock(here().mutex);
    here().lanes -= lanes_;
    if (here().lanes == 0) releases.swap(here().releases);
  }
  for (const auto& release : releases) release();
}

void release_without_lanes(std::function<void()> release) {
  {
    const std::lock_guard lock(here().mutex);
    if (here().lanes > 0) return here().releases.push_back(std::move(release));
  }
  release();
}

}  // namespace sluice::cuda
