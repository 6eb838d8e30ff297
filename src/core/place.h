// Where memory is, and who owns which expert: the tables that every kernel reads.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sluice/limits.h>

#include "core/host_device.h"

namespace sluice::core {

// A byte in some rank's window. Never a bare offset: a window may grow by segments. Segment 0 is the
// window that was made with the communicator.
struct Place {
  std::int32_t rank = -1;  // -1: nowhere
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
};

// The windows of the node's ranks as this rank sees them. Engines keep one where their kernels read it.
struct AddressTable {
  std::byte* base[limits::ranks_per_node] = {};
};

SLUICE_HD inline std::byte* address_of(const AddressTable& table, const Place& place) {
  return place.rank < 0 ? nullptr : table.base[place.rank] + place.offset;
}

struct Topology {
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::int32_t experts = 0;
  std::int32_t even = 0;  // experts per rank when the split is even, else 0
  std::int32_t first_expert[limits::ranks_per_node + 1] = {};

  SLUICE_HD std::int32_t local_experts(int r) const { return first_expert[r + 1] - first_expert[r]; }

  // The rank whose experts contain `expert`, which is in [0, experts).
  SLUICE_HD std::int32_t owner_of(std::int32_t expert) const {
    if (even > 0) return expert / even;
    std::int32_t low = 0, high = ranks;
    while (high - low > 1) {
      const std::int32_t middle = (low + high) / 2;
      if (first_expert[middle] <= expert) low = middle;
      else high = middle;
    }
    return low;
  }
};

SLUICE_HD constexpr std::int64_t align_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace sluice::core
