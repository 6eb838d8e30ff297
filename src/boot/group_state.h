// What a group offers to engines: descriptors, addresses, and news of peers that have gone. The public
// handle is include/sluice/group.h.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "boot/unique_fd.h"

namespace sluice::boot {

class GroupState {
 public:
  virtual ~GroupState() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // All ranks are threads of this process: they exchange plain addresses (by all_gather), no descriptors.
  virtual bool in_one_process() const = 0;

  // Node number of each rank, numbered from 0 in order of first appearance.
  virtual const std::vector<int>& nodes() const = 0;

  // Collective; see Group::all_gather for limits and errors.
  virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> message) = 0;
  virtual void barrier() = 0;

  // Gives a duplicate of `descriptor` to every rank of the node and returns theirs, by rank (own: a
  // duplicate). Collective. Not for in_one_process() groups. Errors as all_gather.
  virtual std::vector<UniqueFd> exchange_descriptors(int descriptor) = 0;

  // Calls `on_gone(rank)` once for each peer that leaves (its process ended, or it dropped its group),
  // from a thread of the group, for those already gone at once from this call. Ends when the returned
  // token is dropped; after that `on_gone` is not running any more. For peers already gone it is called
  // inside this call: hold no lock that it takes. It must not throw.
  virtual std::shared_ptr<void> watch(std::function<void(int rank)> on_gone) = 0;
};

}  // namespace sluice::boot
