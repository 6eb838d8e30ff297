// Small things that a warp or a block does together.
#pragma once

#include "core/kernels.h"
#include "core/routing.h"

namespace sluice::cuda {

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) % 32; }

// This warp among all of the grid, and how many there are. Neighbours are in different blocks, so that what is left
// when the items do not go up evenly is spread over the SMs.
__device__ inline std::int64_t warp_of_grid() {
  return static_cast<std::int64_t>(threadIdx.x) / 32 * gridDim.x + blockIdx.x;
}
__device__ inline std::int64_t warps_of_grid() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x / 32; }

// core::rows_kept by all threads of a block.
__device__ inline std::int64_t rows_kept_together(const core::RouteTables& route, const core::Topology& topology, int rank) {
  __shared__ long long need;
  __syncthreads();
  if (threadIdx.x == 0) need = route.layout == Layout::padded ? 0 : core::rows_kept(route, topology, rank);
  __syncthreads();
  if (route.layout != Layout::padded) return need;
  const std::int32_t end = topology.first_expert[rank + 1];
  for (std::int32_t e = topology.first_expert[rank] + static_cast<std::int32_t>(threadIdx.x); e < end; e += blockDim.x) {
    atomicMax(&need, static_cast<long long>(route.expert_total[e]));
  }
  __syncthreads();
  return need < route.limit[rank] ? need : route.limit[rank];
}

// What a row's address needs of each rank, read once per block instead of once per row: a chain of loads from
// the arena takes microseconds.
struct RankPlaces {
  std::byte* rows[limits::ranks_per_node];
  std::int64_t stride[limits::ranks_per_node];
  std::int64_t packed_base[limits::ranks_per_node];
  std::int64_t limit[limits::ranks_per_node];

  // By all threads of the block, before any of them uses it.
  __device__ void fill(const core::RouteTables& route, const core::AddressTable& addresses,
                       const core::Placement& placement, std::int64_t stride_of_all) {
    for (int r = threadIdx.x; r < route.ranks; r += blockDim.x) {
      rows[r] = core::address_of(addresses, placement.rows[r]);
      stride[r] = stride_of_all > 0 ? stride_of_all : placement.row_stride[r];
      packed_base[r] = route.packed_base[r];
      limit[r] = route.limit[r];
    }
    __syncthreads();
  }
};

// core::packed_index of each token and core::landing_row, with the places at hand.
__device__ inline std::int64_t packed_index(const core::RouteTables& route, const RankPlaces& places, std::int64_t t, std::int32_t r) {
  const std::int32_t mine = route.send_index[t * route.ranks + r];
  return mine < 0 ? -1 : places.packed_base[r] + mine;
}
__device__ inline std::int64_t landing_row(const core::RouteTables& route, const RankPlaces& places,
                                           const core::Topology& topology, std::int64_t t, std::int32_t r) {
  if (route.layout != Layout::packed) return core::landing_row(route, topology, t, r);
  const std::int64_t packed = packed_index(route, places, t, r);
  return packed < places.limit[r] ? packed : -1;
}

// The scales of one row, `from_stride` bytes apart, to their place; `ld` as in ScaleShape::offset.
__device__ inline void copy_scales(const core::ScaleShape& shape, std::byte* to, std::int64_t row, std::int64_t ld,
                                   const std::byte* from, std::int64_t from_stride, int lane) {
  // Rows of scales are multiples of 4 bytes, whatever an element has.
  if (shape.layout == ScaleLayout::row && from_stride == shape.size && (reinterpret_cast<std::uintptr_t>(from) & 3u) == 0) {
    auto* const out = reinterpret_cast<std::uint32_t*>(to + shape.offset(row, 0, ld));
    const auto* const in = reinterpret_cast<const std::uint32_t*>(from);
    for (std::int64_t i = lane; i < shape.count * shape.size / 4; i += 32) out[i] = in[i];
    return;
  }
  for (std::int64_t i = lane; i < shape.count * shape.size; i += 32) {
    const std::int64_t s = i / shape.size, byte = i % shape.size;
    (to + shape.offset(row, s, ld))[byte] = (from + s * from_stride)[byte];
  }
}

}  // namespace sluice::cuda
