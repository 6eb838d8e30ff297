#include "engine/cuda/device_mapping.h"

#include <cstdint>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "engine/cuda/lanes_here.h"

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

[[noreturn]] void no_memory(int device, std::size_t bytes, int rank, const std::string& why) {
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  throw SystemError(fmt::format("communicator on rank {}: the window needs {} bytes of GPU {}, but {} are free: {}; lower "
                                "max_tokens, channels, capacity or arena_bytes", rank, bytes, device, free, why), rank);
}

}  // namespace

std::size_t VirtualMapping::round_up(int device, std::size_t bytes, int rank) {
  const CUmemAllocationProp prop = properties(device);
  std::size_t granularity = 0;
  check(driver()->granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "cuMemGetAllocationGranularity", rank);
  return (bytes + granularity - 1) / granularity * granularity;
}

VirtualMapping::VirtualMapping(int device, std::size_t bytes, int rank) : DeviceMapping(device), bytes_(bytes) {
  const CUmemAllocationProp prop = properties(device);
  const CUresult error = driver()->mem_create(&handle_, bytes_, &prop, 0);
  if (error != CUDA_SUCCESS) no_memory(device, bytes, rank, text_of(error));
  map(rank);
}

VirtualMapping::VirtualMapping(int device, std::size_t bytes, int descriptor, int rank) : DeviceMapping(device), bytes_(bytes) {
  check(driver()->import_handle(&handle_, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle", rank);
  map(rank);
}

void VirtualMapping::map(int rank) {
  try {
    check(driver()->address_reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve", rank);
    check(driver()->mem_map(address_, bytes_, 0, handle_, 0), "cuMemMap", rank);
    mapped_ = true;
    allow(device_, rank);
  } catch (...) {
    release();
    throw;
  }
  base_ = reinterpret_cast<std::byte*>(address_);
}

void VirtualMapping::release() noexcept {
  if (mapped_) driver()->mem_unmap(address_, bytes_);
  if (address_ != 0) driver()->address_free(address_, bytes_);
  if (handle_ != 0) driver()->mem_release(handle_);
}

void VirtualMapping::allow(int device, int rank) const {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(driver()->set_access(address_, bytes_, &access, 1), "cuMemSetAccess", rank);
}

boot::UniqueFd VirtualMapping::share(int rank) const {
  int descriptor = -1;
  check(driver()->export_handle(&descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle", rank);
  return boot::UniqueFd(descriptor);
}

PlainMapping::PlainMapping(int device, std::size_t bytes, int rank) : DeviceMapping(device) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error != cudaSuccess) {
    cudaGetLastError();
    no_memory(device, bytes, rank, text_of(error));
  }
  base_ = static_cast<std::byte*>(memory);
}

PlainMapping::PlainMapping(int device, const cudaIpcMemHandle_t& handle, int rank) : DeviceMapping(device), opened_(true) {
  void* memory = nullptr;
  check(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle", rank);
  base_ = static_cast<std::byte*>(memory);
}

PlainMapping::~PlainMapping() {
  release_without_lanes([device = device_, opened = opened_, base = base_] {
    const CurrentDevice current(device);
    if (opened) cudaIpcCloseMemHandle(base);
    else cudaFree(base);
  });
}

cudaIpcMemHandle_t PlainMapping::share(int rank) const {
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, base_), "cudaIpcGetMemHandle", rank);
  return handle;
}

// Once per pair of devices and process.
void PlainMapping::allow(int device, int rank) const {
  const CurrentDevice current(device);
  const cudaError_t error = cudaDeviceEnablePeerAccess(device_, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
  else check(error, "cudaDeviceEnablePeerAccess", rank);
}

}  // namespace sluice::cuda
