// One launch, which says itself whether it failed: the thread's last error may be the caller's.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "engine/cuda/launch.h"

namespace sluice::cuda {

// Of a kernel with a warp per item.
inline unsigned blocks_for(const Launch& how, std::int64_t items, int warps) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((items + warps - 1) / warps, 1, how.num_sms));
}

struct Grid {
  unsigned blocks = 1;
  int threads = 32;
  std::int64_t shared_bytes = 0;
};

inline core::AgreeArgs agree_of(const Launch& how) { return how.agree != nullptr ? *how.agree : core::AgreeArgs{}; }

// A kernel that follows one of ours is brought to its SMs while the tail of that one runs, and waits there for its
// end: every kernel begins with wait_for_kernel_before() and says let_next_kernel_come() when its work is done.
template <class... Parameters, class... Arguments>
cudaError_t start(void (*kernel)(Parameters...), const Grid& grid, const Launch& how, const Arguments&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.blocks);
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.stream = how.stream;
  config.attrs = &early;
  config.numAttrs = how.follows ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace sluice::cuda
