#include "engine/cuda/device_window.h"

#include <cstring>
#include <span>

#include "engine/window.h"

namespace sluice::cuda {

DeviceWindows::DeviceWindows(boot::GroupState& group, int device, std::int64_t bytes, WindowKind kind)
    : rank_(group.rank()), device_(device), bytes_(static_cast<std::size_t>(bytes)), kind_(kind),
      mappings_(static_cast<std::size_t>(group.size())) {
  engine::together(group, [&] { mappings_[static_cast<std::size_t>(rank_)] = take(); });
}

std::shared_ptr<DeviceMapping> DeviceWindows::take() {
  if (kind_ == WindowKind::plain) return std::make_shared<PlainMapping>(device_, bytes_, rank_);
  bytes_ = VirtualMapping::round_up(device_, bytes_, rank_);
  return std::make_shared<VirtualMapping>(device_, bytes_, rank_);
}

void DeviceWindows::connect(boot::GroupState& group) {
  if (group.in_one_process()) return map_threads(group);
  if (kind_ == WindowKind::plain) return map_by_handles(group);
  map_by_descriptors(group);
}

void DeviceWindows::map_threads(boot::GroupState& group) {
  engine::share_objects(group, mappings_);
  engine::together(group, [&] {
    for (const auto& mapping : mappings_) {
      if (mapping->device() != device_) mapping->allow(device_, rank_);
    }
  });
}

void DeviceWindows::map_by_descriptors(boot::GroupState& group) {
  boot::UniqueFd mine;
  engine::together(group, [&] { mine = static_cast<const VirtualMapping&>(*own()).share(rank_); });
  const std::vector<boot::UniqueFd> descriptors = group.exchange_descriptors(mine.get());
  engine::together(group, [&] {
    for (std::size_t r = 0; r < mappings_.size(); ++r) {
      if (!mappings_[r]) mappings_[r] = std::make_shared<VirtualMapping>(device_, bytes_, descriptors[r].get(), rank_);
    }
  });
}

void DeviceWindows::map_by_handles(boot::GroupState& group) {
  cudaIpcMemHandle_t mine{};
  engine::together(group, [&] { mine = static_cast<const PlainMapping&>(*own()).share(rank_); });
  const auto handles = group.all_gather(std::as_bytes(std::span(&mine, 1)));
  engine::together(group, [&] {
    for (std::size_t r = 0; r < mappings_.size(); ++r) {
      if (mappings_[r]) continue;
      cudaIpcMemHandle_t handle{};
      std::memcpy(&handle, handles[r].data(), std::min(sizeof(handle), handles[r].size()));
      mappings_[r] = std::make_shared<PlainMapping>(device_, handle, rank_);
    }
  });
}

}  // namespace sluice::cuda
