// One launch, which says itself whether it failed: the thread's last error may be the caller's.
#pragma once

#include <cuda_runtime.h>

namespace sluice::cuda {

struct Grid {
  unsigned blocks = 1;
  int threads = 32;
  std::int64_t shared_bytes = 0;
};

template <class... Parameters, class... Arguments>
cudaError_t start(void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.blocks);
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace sluice::cuda
