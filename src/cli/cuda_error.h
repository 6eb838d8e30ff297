// What the CUDA runtime answers, as an exception. Only for sources that are built with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace sluice::cli {

// Throws std::runtime_error, with the name of the call, unless it went well.
inline void expect(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

}  // namespace sluice::cli
