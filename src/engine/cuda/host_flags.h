// The pinned host memory in which the ranks of a node keep their flags (shared.h).
#pragma once

#include <memory>
#include <vector>

#include "boot/group_state.h"
#include "engine/cuda/shared.h"
#include "engine/window.h"

namespace sluice::cuda {

// A mapping that the devices of this process may use, for as long as anybody of it holds this.
class PinnedMapping {
 public:
  PinnedMapping(std::shared_ptr<engine::Mapping> mapping, std::size_t bytes, int rank);
  ~PinnedMapping();
  PinnedMapping(const PinnedMapping&) = delete;
  PinnedMapping& operator=(const PinnedMapping&) = delete;
  std::byte* base() const { return mapping_->base(); }

 private:
  std::shared_ptr<engine::Mapping> mapping_;
};

class HostFlags {
 public:
  // Collective, like the windows that they are.
  HostFlags(boot::GroupState& group, int channels);
  // Peers' flags; a barrier. Own flags are initialised before.
  void connect(boot::GroupState& group);

  // The same address for host and device.
  SharedChannel& of(int rank, int channel) const {
    return reinterpret_cast<SharedChannel*>(pinned_[static_cast<std::size_t>(rank)]->base())[channel];
  }

  // The memory of the own ones.
  const std::shared_ptr<engine::Mapping>& own() const { return windows_.own(); }

 private:
  void pin(int rank);

  int rank_;
  std::size_t bytes_;
  engine::Windows windows_;
  std::vector<std::shared_ptr<PinnedMapping>> pinned_;
};

}  // namespace sluice::cuda
