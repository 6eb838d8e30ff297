// The GPUs of a node's ranks, and whether they can work together: asked before anything is allocated (promise F5).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <sluice/limits.h>

#include "boot/group_state.h"

namespace sluice::cuda {

// Where windows lie: in virtual memory whose handles are descriptors, or in plain device memory that other
// processes open by CUDA IPC, for platforms without the first.
enum class WindowKind : std::uint8_t { virtual_memory, plain };

// Whether a rank's GPU can address the memory of another's. Unknown: the process does not see that GPU.
enum class Reach : std::uint8_t { no, yes, unknown };

// What a rank says of its GPU.
struct GpuFacts {
  char name[64] = {};
  char pci[24] = {};
  std::array<unsigned char, 16> uuid = {};
  WindowKind window = WindowKind::virtual_memory;
  std::array<Reach, limits::ranks_per_node> reaches = {};  // by rank
};

// Why GPUs with these facts, by rank, cannot work together: one sentence with all facts. Empty: they can.
std::string why_not_together(const std::vector<GpuFacts>& gpus);

// Tells the ranks of each other's GPUs; `device` is this rank's. Collective. Throws ArgumentError for an unknown
// SLUICE_CUDA_WINDOW and SystemError when they cannot work together, on all ranks. Returns the kind of all windows.
WindowKind agree_on_gpus(boot::GroupState& group, int device);

}  // namespace sluice::cuda
