// The GPU of the calling thread, for reports.
#pragma once

#include <string>

namespace sluice::cli {

struct Gpu {
  std::string name;    // "NVIDIA H200"
  int count = 0;       // GPUs that this process may use; 0 = none asked for
  std::string driver;  // "580.95.05"
  std::string cuda;    // "13.0", of the runtime that this program was built with
};

// Throws std::runtime_error where there is none, or this build has no CUDA.
Gpu this_gpu();

}  // namespace sluice::cli
