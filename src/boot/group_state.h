// What a group offers to engines: descriptors, addresses, and news of peers that have gone. The public
// handle is include/sluice/group.h.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include <sluice/errors.h>

#include "boot/unique_fd.h"

namespace sluice::boot {

class GroupState {
 public:
  virtual ~GroupState() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // All ranks are threads of this process: they exchange objects, no descriptors.
  virtual bool in_one_process() const = 0;

  // Node number of each rank, numbered from 0 in order of first appearance.
  virtual const std::vector<int>& nodes() const = 0;

  // Collective; see Group::all_gather for limits and errors.
  virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> message) = 0;
  virtual void barrier() = 0;

  // Gives a duplicate of `descriptor` to every rank of the node and returns theirs, by rank (own: a
  // duplicate). Collective. Not for in_one_process() groups. Errors as all_gather.
  virtual std::vector<UniqueFd> exchange_descriptors(int descriptor) = 0;

  // Gives every rank a share in `object`, and returns theirs, by rank. Collective. Only for in_one_process() groups. Errors as
  // all_gather; PeerError too when a rank dropped its own before this one had a share.
  virtual std::vector<std::shared_ptr<void>> exchange_objects(const std::shared_ptr<void>& object) = 0;

  // No collective of this rank comes any more: peers that wait in one, or come to one, get PeerError with `why`. For a rank
  // that something else than an Error of the library keeps from its part.
  virtual void give_up(const char* why) noexcept = 0;

  // Calls `on_gone(rank)` once for each peer that leaves (its process ended, or it dropped its group),
  // from a thread of the group, for those already gone at once from this call. Ends when the returned
  // token is dropped; after that `on_gone` is not running any more. For peers already gone it is called
  // inside this call: hold no lock that it takes. It must not throw.
  virtual std::shared_ptr<void> watch(std::function<void(int rank)> on_gone) = 0;
};

// An exception that is no Error of the library, of which the peers have been told.
struct Told {
  std::exception_ptr error;
};

inline constexpr const char* no_memory = "this process has no memory left";

// How a rank's step went behind which it talks to its peers.
struct Trouble {
  std::exception_ptr error;  // null: none. To be thrown when they have been told: an Error, or Told
  std::string text;          // for them
};
Trouble trouble_of(const std::function<void()>& step);

// A rank's part in something that all ranks do. An Error that it throws is known to the peers, or theirs too; of anything
// else they are told here.
template <class Part>
auto or_give_up(GroupState& group, Part&& part) {
  try {
    return part();
  } catch (const Error&) {
    throw;
  } catch (const Told& told) {
    std::rethrow_exception(told.error);
  } catch (const std::bad_alloc&) {
    group.give_up("it has no memory left");
    throw SystemError(no_memory, group.rank());
  } catch (...) {
    group.give_up("it was interrupted by an exception");
    throw;
  }
}

}  // namespace sluice::boot
