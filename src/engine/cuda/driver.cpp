#include "engine/cuda/driver.h"

#include <fmt/format.h>

#include <sluice/errors.h>

namespace sluice::cuda {

namespace {

constexpr unsigned cuda_version = 12080;  // of the functions that are looked up
// The first driver that knows both these and the runtime that is linked, of a major version later than theirs.
constexpr const char* needed = CUDART_VERSION >= 13000 ? "580 or later is needed" : "570 or later is needed";

struct Found {
  Driver driver;
  std::string why_not;
};

template <class Function>
void find(Found& found, const char* name, Function& function) {
  if (!found.why_not.empty()) return;
  void* at = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &at, cuda_version, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || at == nullptr) {
    cudaGetLastError();
    found.why_not = fmt::format("the NVIDIA driver has no {}; {}", name, needed);
    return;
  }
  function = reinterpret_cast<Function>(at);
}

bool has(int device, cudaDeviceAttr attribute) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess && value != 0;
}

void check_devices(Found& found) {
  int driver_version = 0, devices = 0;
  cudaDriverGetVersion(&driver_version);
  if (driver_version == 0) {
    found.why_not = fmt::format("no NVIDIA driver is installed; {}", needed);
    return;
  }
  const cudaError_t error = cudaGetDeviceCount(&devices);
  cudaGetLastError();
  if (error == cudaErrorInsufficientDriver) {
    found.why_not = fmt::format("the NVIDIA driver knows CUDA {}.{}, this build has {}.{}; {}", driver_version / 1000,
                                driver_version % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, needed);
    return;
  }
  if (error != cudaSuccess || devices == 0) {
    found.why_not = fmt::format("no GPU can be used: {}", error == cudaSuccess ? "there is none" : text_of(error));
    return;
  }
  for (int device = 0; device < devices; ++device) {
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (major < 9) {
      found.why_not = fmt::format("GPU {} has compute capability {}.x; 9.0 (Hopper) or later is needed", device, major);
      return;
    }
    if (!has(device, cudaDevAttrCanUseHostPointerForRegisteredMem)) {
      found.why_not = fmt::format("GPU {} cannot use host pointers for registered memory", device);
      return;
    }
  }
}

const Found& found() {
  static const Found once = [] {
    Found f;
    check_devices(f);
    find(f, "cuMemCreate", f.driver.mem_create);
    find(f, "cuMemRelease", f.driver.mem_release);
    find(f, "cuMemAddressReserve", f.driver.address_reserve);
    find(f, "cuMemAddressFree", f.driver.address_free);
    find(f, "cuMemMap", f.driver.mem_map);
    find(f, "cuMemUnmap", f.driver.mem_unmap);
    find(f, "cuMemSetAccess", f.driver.set_access);
    find(f, "cuMemGetAllocationGranularity", f.driver.granularity);
    find(f, "cuMemExportToShareableHandle", f.driver.export_handle);
    find(f, "cuMemImportFromShareableHandle", f.driver.import_handle);
    find(f, "cuStreamBatchMemOp", f.driver.batch_mem_op);
    find(f, "cuDeviceGetAttribute", f.driver.device_attribute);
    find(f, "cuGetErrorString", f.driver.error_string);
    return f;
  }();
  return once;
}

}  // namespace

const Driver* driver() { return found().why_not.empty() ? &found().driver : nullptr; }
const std::string& why_not() { return found().why_not; }

std::string text_of(cudaError_t error) { return fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error)); }

std::string text_of(CUresult error) {
  const char* text = nullptr;
  if (driver() && driver()->error_string(error, &text) == CUDA_SUCCESS && text) return text;
  return fmt::format("driver error {}", static_cast<int>(error));
}

void check(CUresult error, const char* what, int rank) {
  if (error == CUDA_SUCCESS) return;
  throw SystemError(fmt::format("communicator on rank {}: {} failed: {}", rank, what, text_of(error)), rank);
}

void check(cudaError_t error, const char* what, int rank) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw SystemError(fmt::format("communicator on rank {}: {} failed: {}", rank, what, text_of(error)), rank);
}

CurrentDevice::CurrentDevice(int device) {
  cudaGetDevice(&before_);
  if (before_ == device) before_ = -1;
  else cudaSetDevice(device);
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
}

}  // namespace sluice::cuda
