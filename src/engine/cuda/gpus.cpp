#include "engine/cuda/gpus.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "engine/cuda/driver.h"
#include "engine/window.h"

namespace sluice::cuda {

namespace {

std::string list(const std::vector<std::string>& items) { return fmt::format("{}", fmt::join(items, ", ")); }

std::string text_of(const GpuFacts& gpu, std::size_t rank) { return fmt::format("rank {} has {} at {}", rank, gpu.name, gpu.pci); }

bool virtual_windows(int device) {
  int memory = 0, descriptors = 0;
  const auto ask = driver()->device_attribute;
  ask(&memory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  ask(&descriptors, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
  return memory != 0 && descriptors != 0;
}

WindowKind window_of(int device, int rank) {
  const char* const asked = std::getenv("SLUICE_CUDA_WINDOW");
  const std::string kind = asked ? asked : "";
  if (kind == "plain") return WindowKind::plain;
  if (!kind.empty() && kind != "virtual") {
    throw ArgumentError(fmt::format("communicator on rank {}: SLUICE_CUDA_WINDOW = \"{}\" is neither virtual nor plain", rank, kind), rank);
  }
  return virtual_windows(device) ? WindowKind::virtual_memory : WindowKind::plain;
}

GpuFacts facts_of(int device, int rank) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", rank);
  GpuFacts facts;
  const std::size_t length = std::min(std::strlen(properties.name), sizeof(facts.name) - 1);
  std::memcpy(facts.name, properties.name, length);
  check(cudaDeviceGetPCIBusId(facts.pci, sizeof(facts.pci), device), "cudaDeviceGetPCIBusId", rank);
  std::memcpy(facts.uuid.data(), properties.uuid.bytes, facts.uuid.size());
  facts.window = window_of(device, rank);
  return facts;
}

// The device of this process that is this GPU; -1: the process does not see it.
int device_with(const std::array<unsigned char, 16>& uuid) {
  int devices = 0;
  cudaGetDeviceCount(&devices);
  for (int device = 0; device < devices; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    if (std::memcmp(uuid.data(), properties.uuid.bytes, uuid.size()) == 0) return device;
  }
  return -1;
}

Reach reach(int device, const GpuFacts& mine, const GpuFacts& other) {
  if (mine.uuid == other.uuid) return Reach::yes;
  const int there = device_with(other.uuid);
  int can = 0;
  if (there < 0 || cudaDeviceCanAccessPeer(&can, device, there) != cudaSuccess) return Reach::unknown;
  return can != 0 ? Reach::yes : Reach::no;
}

std::vector<GpuFacts> exchange(boot::GroupState& group, const GpuFacts& mine) {
  std::vector<GpuFacts> all;
  for (const auto& bytes : group.all_gather(std::as_bytes(std::span(&mine, 1)))) {
    if (bytes.size() != sizeof(GpuFacts)) {
      throw PeerError(fmt::format("communicator on rank {}: rank {} sent {} bytes about its GPU, but {} are expected: another "
                                  "version of Sluice", group.rank(), all.size(), bytes.size(), sizeof(GpuFacts)), group.rank());
    }
    GpuFacts& facts = all.emplace_back();
    std::memcpy(static_cast<void*>(&facts), bytes.data(), sizeof(facts));
    facts.name[sizeof(facts.name) - 1] = facts.pci[sizeof(facts.pci) - 1] = '\0';
  }
  return all;
}

}  // namespace

std::string why_not_together(const std::vector<GpuFacts>& gpus) {
  const auto other_model = std::find_if(gpus.begin(), gpus.end(), [&](const GpuFacts& gpu) {
    return std::strcmp(gpu.name, gpus.front().name) != 0;
  });
  if (other_model != gpus.end()) {
    std::vector<std::string> models;
    for (std::size_t r = 0; r < gpus.size(); ++r) models.push_back(text_of(gpus[r], r));
    return fmt::format("the GPUs of a node must be of one model, but {}; choose others with CUDA_VISIBLE_DEVICES", list(models));
  }
  std::vector<std::string> pairs;
  for (std::size_t a = 0; a < gpus.size(); ++a) {
    for (std::size_t b = a + 1; b < gpus.size(); ++b) {
      if (gpus[a].reaches[b] != Reach::no && gpus[b].reaches[a] != Reach::no) continue;
      pairs.push_back(fmt::format("ranks {} and {} ({} and {})", a, b, gpus[a].pci, gpus[b].pci));
    }
  }
  if (pairs.empty()) return {};
  return fmt::format("the GPUs of a node must reach each other's memory, but those of {} cannot; choose others with "
                     "CUDA_VISIBLE_DEVICES (nvidia-smi topo -p2p r shows who can)", list(pairs));
}

WindowKind agree_on_gpus(boot::GroupState& group, int device) {
  GpuFacts mine;
  engine::together(group, [&] { mine = facts_of(device, group.rank()); });
  std::vector<GpuFacts> all = exchange(group, mine);
  for (std::size_t r = 0; r < all.size(); ++r) mine.reaches[r] = reach(device, mine, all[r]);
  all = exchange(group, mine);
  const std::string trouble = why_not_together(all);
  if (!trouble.empty()) throw SystemError(fmt::format("communicator on rank {}: {}", group.rank(), trouble), group.rank());
  const bool plain = std::any_of(all.begin(), all.end(), [](const GpuFacts& gpu) { return gpu.window == WindowKind::plain; });
  return plain ? WindowKind::plain : WindowKind::virtual_memory;
}

}  // namespace sluice::cuda
