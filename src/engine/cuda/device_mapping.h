// A window in device memory, as this process addresses it.
#pragma once

#include <cstddef>
#include <memory>

#include "boot/unique_fd.h"
#include "engine/cuda/driver.h"

namespace sluice::cuda {

// Ends with its last owner.
class DeviceMapping {
 public:
  virtual ~DeviceMapping() = default;
  DeviceMapping(const DeviceMapping&) = delete;
  DeviceMapping& operator=(const DeviceMapping&) = delete;

  std::byte* base() const { return base_; }
  int device() const { return device_; }
  // Another device of this process uses it too.
  virtual void allow(int device, int rank) const = 0;

 protected:
  explicit DeviceMapping(int device) : device_(device) {}

  int device_;
  std::byte* base_ = nullptr;
};

// Virtual memory, whose handle is a descriptor.
class VirtualMapping final : public DeviceMapping {
 public:
  // Makes memory on `device`, or maps what a peer's descriptor names, for `device` to use. `bytes` as rounded up.
  VirtualMapping(int device, std::size_t bytes, int rank);
  VirtualMapping(int device, std::size_t bytes, int descriptor, int rank);
  ~VirtualMapping() override { release(); }

  // A descriptor for peers in other processes.
  boot::UniqueFd share(int rank) const;
  void allow(int device, int rank) const override;

  static std::size_t round_up(int device, std::size_t bytes, int rank);

 private:
  void map(int rank);
  void release() noexcept;

  std::size_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
};

// Plain device memory, which other processes open by CUDA IPC.
class PlainMapping final : public DeviceMapping {
 public:
  PlainMapping(int device, std::size_t bytes, int rank);
  PlainMapping(int device, const cudaIpcMemHandle_t& handle, int rank);
  ~PlainMapping() override;

  cudaIpcMemHandle_t share(int rank) const;
  void allow(int device, int rank) const override;

 private:
  bool opened_ = false;  // a peer's
};

}  // namespace sluice::cuda
