#include "engine/cuda/device_window.h"

#include <string>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "engine/window.h"

namespace sluice::cuda {

namespace {

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

}  // namespace

std::size_t DeviceMapping::round_up(int device, std::size_t bytes, int rank) {
  const CUmemAllocationProp prop = properties(device);
  std::size_t granularity = 0;
  check(driver()->granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "cuMemGetAllocationGranularity", rank);
  return (bytes + granularity - 1) / granularity * granularity;
}

DeviceMapping::DeviceMapping(int device, std::size_t bytes, int rank) : device_(device), bytes_(bytes) {
  const CUmemAllocationProp prop = properties(device);
  const CUresult error = driver()->mem_create(&handle_, bytes_, &prop, 0);
  if (error != CUDA_SUCCESS) {
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw SystemError(fmt::format("communicator on rank {}: the window needs {} bytes of GPU {}, but {} are free: {}; lower "
                                  "max_tokens, channels, capacity or arena_bytes",
                                  rank, bytes_, device, free, text_of(error)), rank);
  }
  map(rank);
}

DeviceMapping::DeviceMapping(int device, std::size_t bytes, int descriptor, int rank) : device_(device), bytes_(bytes) {
  check(driver()->import_handle(&handle_, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle", rank);
  map(rank);
}

void DeviceMapping::map(int rank) {
  try {
    check(driver()->address_reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve", rank);
    check(driver()->mem_map(address_, bytes_, 0, handle_, 0), "cuMemMap", rank);
    mapped_ = true;
    allow(device_, rank);
  } catch (...) {
    release();
    throw;
  }
}

DeviceMapping::~DeviceMapping() { release(); }

void DeviceMapping::release() noexcept {
  if (mapped_) driver()->mem_unmap(address_, bytes_);
  if (address_ != 0) driver()->address_free(address_, bytes_);
  if (handle_ != 0) driver()->mem_release(handle_);
}

void DeviceMapping::allow(int device, int rank) const {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(driver()->set_access(address_, bytes_, &access, 1), "cuMemSetAccess", rank);
}

boot::UniqueFd DeviceMapping::share(int rank) const {
  int descriptor = -1;
  check(driver()->export_handle(&descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle", rank);
  return boot::UniqueFd(descriptor);
}

DeviceWindows::DeviceWindows(boot::GroupState& group, int device, std::int64_t bytes)
    : rank_(group.rank()), device_(device), bytes_(static_cast<std::size_t>(bytes)),
      mappings_(static_cast<std::size_t>(group.size())) {
  std::string trouble;
  try {
    take();
  } catch (const SystemError& error) {
    trouble = error.what();
  }
  engine::share_trouble(group, trouble);
}

void DeviceWindows::take() {
  bytes_ = DeviceMapping::round_up(device_, bytes_, rank_);
  auto own = std::make_shared<DeviceMapping>(device_, bytes_, rank_);
  mappings_[static_cast<std::size_t>(rank_)] = std::move(own);
}

void DeviceWindows::connect(boot::GroupState& group) {
  if (group.in_one_process()) {
    engine::share_handles(group, mappings_);
    for (const auto& mapping : mappings_) {
      if (mapping->device() != device_) mapping->allow(device_, rank_);
    }
    return group.barrier();
  }
  const boot::UniqueFd mine = own()->share(rank_);
  const std::vector<boot::UniqueFd> descriptors = group.exchange_descriptors(mine.get());
  for (int r = 0; r < group.size(); ++r) {
    if (r == rank_) continue;
    mappings_[static_cast<std::size_t>(r)] =
        std::make_shared<DeviceMapping>(device_, bytes_, descriptors[static_cast<std::size_t>(r)].get(), rank_);
  }
  group.barrier();
}

}  // namespace sluice::cuda
