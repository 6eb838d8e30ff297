#include "cli/gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

#if defined(SLUICE_CUDA)
#include <cuda_runtime.h>

#include "cli/cuda_error.h"
#endif

namespace sluice::cli {

#if defined(SLUICE_CUDA)

namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// The kernel module's version, which the runtime does not tell; else the CUDA version that the driver knows.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (std::count(word.begin(), word.end(), '.') >= 1 &&
        word.find_first_not_of("0123456789.") == std::string::npos)
      return word;
  }
  int version = 0;
  cudaDriverGetVersion(&version);
  return version == 0 ? "" : fmt::format("for CUDA {}", version_text(version));
}

GpuFacts facts_of(int device) {
  cudaDeviceProp properties{};
  char pci[24] = {};
  GpuFacts facts;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return facts;
  cudaDeviceGetPCIBusId(pci, sizeof pci, device);
  facts.name = properties.name;
  facts.pci = pci;
  facts.compute = fmt::format("{}.{}", properties.major, properties.minor);
  facts.sms = properties.multiProcessorCount;
  facts.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  std::size_t free = 0, total = 0;
  const bool asked = cudaSetDevice(device) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess;
  facts.free_bytes = asked ? static_cast<std::int64_t>(free) : -1;
  return facts;
}

}  // namespace

Gpus gpus_here() {
  Gpus here;
  here.cuda = version_text(CUDART_VERSION);
  here.driver = driver_version();
  here.driver_needed = CUDART_VERSION >= 13000 ? "580" : "570";
  int count = 0, before = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  if (count > 0) cudaGetDevice(&before);
  for (int device = 0; device < count; ++device) {
    here.gpus.push_back(facts_of(device));
    for (int other = 0; other < count; ++other) {
      int reaches = 0;
      if (other == device) continue;
      cudaDeviceCanAccessPeer(&reaches, device, other);
      here.links.push_back({device, other, reaches != 0});
    }
  }
  if (count > 0) cudaSetDevice(before);
  static_cast<void>(cudaGetLastError());
  return here;
}

Gpu this_gpu() {
  Gpu gpu;
  int current = 0;
  cudaDeviceProp properties{};
  expect(cudaGetDeviceCount(&gpu.count), "cudaGetDeviceCount");
  cudaGetDevice(&current);
  cudaGetDeviceProperties(&properties, current);
  char pci[24] = {};
  cudaDeviceGetPCIBusId(pci, sizeof pci, current);
  gpu.name = properties.name;
  gpu.driver = driver_version();
  gpu.cuda = version_text(CUDART_VERSION);
  gpu.pci = pci;
  gpu.sms = properties.multiProcessorCount;
  return gpu;
}

#else

Gpu this_gpu() { throw std::runtime_error("this build has no CUDA"); }
Gpus gpus_here() { return {}; }

#endif

}  // namespace sluice::cli
