#include "cli/gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

#if defined(SLUICE_CUDA)
#include <cuda_runtime.h>
#endif

namespace sluice::cli {

#if defined(SLUICE_CUDA)

namespace {

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
  return fmt::format("for CUDA {}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

Gpu this_gpu() {
  Gpu gpu;
  int current = 0;
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceCount(&gpu.count); error != cudaSuccess)
    throw std::runtime_error(fmt::format("cudaGetDeviceCount: {}", cudaGetErrorString(error)));
  cudaGetDevice(&current);
  cudaGetDeviceProperties(&properties, current);
  gpu.name = properties.name;
  gpu.driver = driver_version();
  gpu.cuda = fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  return gpu;
}

#else

Gpu this_gpu() { throw std::runtime_error("this build has no CUDA"); }

#endif

}  // namespace sluice::cli
