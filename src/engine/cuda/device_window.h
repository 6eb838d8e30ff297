// The windows of the node's ranks in device memory, as this process addresses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "boot/group_state.h"
#include "engine/cuda/driver.h"

namespace sluice::cuda {

// One physical allocation, mapped. Ends with its last owner.
class DeviceMapping {
 public:
  // Makes memory on `device`, or maps what a peer's descriptor names, for `device` to use.
  DeviceMapping(int device, std::size_t bytes, int rank);
  DeviceMapping(int device, std::size_t bytes, int descriptor, int rank);
  ~DeviceMapping();
  DeviceMapping(const DeviceMapping&) = delete;
  DeviceMapping& operator=(const DeviceMapping&) = delete;

  std::byte* base() const { return reinterpret_cast<std::byte*>(address_); }
  int device() const { return device_; }
  // A descriptor for peers in other processes.
  boot::UniqueFd share(int rank) const;
  // Another device of this process uses it too.
  void allow(int device, int rank) const;

  static std::size_t round_up(int device, std::size_t bytes, int rank);

 private:
  void map(int rank);
  void release() noexcept;

  int device_;
  std::size_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
};

class DeviceWindows {
 public:
  // Takes the own window, zero filled. Collective: a rank without the memory tells the others. Throws
  // SystemError naming need and free memory, on the peers PeerError.
  DeviceWindows(boot::GroupState& group, int device, std::int64_t bytes);
  // Maps the peers'. Collective, and a barrier.
  void connect(boot::GroupState& group);

  const std::shared_ptr<DeviceMapping>& own() const { return mappings_[static_cast<std::size_t>(rank_)]; }
  std::byte* of(int rank) const { return mappings_[static_cast<std::size_t>(rank)]->base(); }

 private:
  void take();

  int rank_;
  int device_;
  std::size_t bytes_;
  std::vector<std::shared_ptr<DeviceMapping>> mappings_;
};

}  // namespace sluice::cuda
