// The driver's functions that the runtime does not offer, found when the program runs: one binary serves
// machines with and without a GPU.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

namespace sluice::cuda {

struct Driver {
  decltype(&cuMemCreate) mem_create = nullptr;
  decltype(&cuMemRelease) mem_release = nullptr;
  decltype(&cuMemAddressReserve) address_reserve = nullptr;
  decltype(&cuMemAddressFree) address_free = nullptr;
  decltype(&cuMemMap) mem_map = nullptr;
  decltype(&cuMemUnmap) mem_unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuStreamBatchMemOp) batch_mem_op = nullptr;
  decltype(&cuDeviceGetAttribute) device_attribute = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;
};

// Null when this machine cannot run the engine; `why_not()` says in one sentence why.
const Driver* driver();
const std::string& why_not();

// What the driver or the runtime means by an error.
std::string text_of(CUresult error);
std::string text_of(cudaError_t error);

// Throw SystemError: "communicator on rank R: WHAT failed: ...".
void check(CUresult error, const char* what, int rank);
void check(cudaError_t error, const char* what, int rank);

// Makes `device` current in this thread for its life.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = -1;
};

}  // namespace sluice::cuda
