#include "engine/cuda/host_flags.h"

#include <cstring>
#include <utility>

#include "engine/cuda/driver.h"
#include "engine/cuda/lanes_here.h"

namespace sluice::cuda {

namespace {

void initialise(SharedChannel& channel, int rank, int ranks) {
  std::memset(static_cast<void*>(&channel), 0, sizeof(channel));
  for (int w = 0; w < flag_words; ++w) {
    channel.flags[static_cast<int>(core::Stage::open)][w] = reset_word(w, rank, ranks);
    channel.flags[static_cast<int>(core::Stage::close)][w] = all_arrived;
  }
}

}  // namespace

PinnedMapping::PinnedMapping(std::shared_ptr<engine::Mapping> mapping, std::size_t bytes, int rank)
    : mapping_(std::move(mapping)) {
  check(cudaHostRegister(mapping_->base(), bytes, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister", rank);
}

PinnedMapping::~PinnedMapping() {
  release_without_lanes([mapping = std::move(mapping_)] { cudaHostUnregister(mapping->base()); });
}

HostFlags::HostFlags(boot::GroupState& group, int channels)
    : rank_(group.rank()),
      bytes_(static_cast<std::size_t>(core::align_up(channels * static_cast<std::int64_t>(sizeof(SharedChannel)), 4096))),
      windows_(group, static_cast<std::int64_t>(bytes_)), pinned_(static_cast<std::size_t>(group.size())) {
  auto* const own = reinterpret_cast<SharedChannel*>(windows_.of(rank_));
  for (int c = 0; c < channels; ++c) initialise(own[c], rank_, group.size());
  engine::together(group, [&] { pin(rank_); });
}

void HostFlags::pin(int rank) {
  pinned_[static_cast<std::size_t>(rank)] = std::make_shared<PinnedMapping>(windows_.mapping(rank), bytes_, rank_);
}

void HostFlags::connect(boot::GroupState& group) {
  windows_.connect(group);
  // One registration per page and process: peers of one process share the owner's.
  const bool shares = group.in_one_process();
  if (shares) engine::share_objects(group, pinned_);
  engine::together(group, [&] {
    for (int r = 0; r < group.size() && !shares; ++r) {
      if (r != rank_) pin(r);
    }
  });
}

}  // namespace sluice::cuda
