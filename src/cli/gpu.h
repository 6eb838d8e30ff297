// The GPUs of this machine, for reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::cli {

struct Gpu {
  std::string name;    // "NVIDIA H200"
  int count = 0;       // GPUs that this process may use; 0 = none asked for
  std::string driver;  // "580.95.05"
  std::string cuda;    // "13.0", of the runtime that this program was built with
  std::string pci;     // "0000:1B:00.0"
  int sms = 0;
};

// The one of the calling thread. Throws std::runtime_error where there is none, or this build has no CUDA.
Gpu this_gpu();

struct GpuFacts {
  std::string name, pci, compute;  // "NVIDIA H200", "0000:1B:00.0", "9.0"
  int sms = 0;
  std::int64_t memory_bytes = 0, free_bytes = 0;  // free: -1 where it cannot be asked
};

struct GpuLink {
  int from = 0, to = 0;  // GPUs
  bool reaches = false;  // `from` can load and store the memory of `to`
};

// What is here; empty where nothing is.
struct Gpus {
  std::vector<GpuFacts> gpus;
  std::vector<GpuLink> links;  // of all ordered pairs
  std::string cuda;            // of the runtime that this program was built with
  std::string driver;
  std::string driver_needed;
};
Gpus gpus_here();

}  // namespace sluice::cli
