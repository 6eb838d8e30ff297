// The windows of the node's ranks in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "boot/group_state.h"
#include "engine/cuda/device_mapping.h"
#include "engine/cuda/gpus.h"

namespace sluice::cuda {

class DeviceWindows {
 public:
  // Takes the own window. `kind` of all ranks. Collective: a rank without the memory tells the others. Throws
  // SystemError naming need and free memory, on the peers PeerError.
  DeviceWindows(boot::GroupState& group, int device, std::int64_t bytes, WindowKind kind);
  // Maps the peers'. Collective, and a barrier. Throws SystemError, on the peers PeerError.
  void connect(boot::GroupState& group);

  const std::shared_ptr<DeviceMapping>& own() const { return mappings_[static_cast<std::size_t>(rank_)]; }
  std::byte* of(int rank) const { return mappings_[static_cast<std::size_t>(rank)]->base(); }

 private:
  std::shared_ptr<DeviceMapping> take();
  void map_threads(boot::GroupState& group);
  void map_by_descriptors(boot::GroupState& group);
  void map_by_handles(boot::GroupState& group);

  int rank_;
  int device_;
  std::size_t bytes_;
  WindowKind kind_;
  std::vector<std::shared_ptr<DeviceMapping>> mappings_;
};

}  // namespace sluice::cuda
