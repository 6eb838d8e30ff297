#include <initializer_list>

#include "engine/cuda/driver.h"
#include "engine/cuda/launch.h"

namespace sluice::cuda {

cudaError_t prepare(const void* kernel, std::int64_t shared_bytes) {
  if (shared_bytes > 0) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  // A kernel with local memory may make its first launch wait until every stream is idle: none has any, or
  // ptxas warns (src/CMakeLists.txt).
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, kernel);
}

void prepare_kernels() {
  for (const cudaError_t error : {prepare_plan(), prepare_exchange(), prepare_move(), prepare_finish(), prepare_combine()}) {
    check(error, "loading the kernels", -1);
  }
}

}  // namespace sluice::cuda
