// The sockets of one rank to its peers, kept out of the reach of forked children.
#pragma once

#include <sys/types.h>

#include <vector>

#include "boot/unique_fd.h"

namespace sluice::boot {

// A fork copies descriptors, and a peer is known to have gone by its closed socket: a child that lives
// on (a data loader) would hide its parent's death. So in a forked child these descriptors are
// replaced by dead ones: the same numbers, connected to nobody.
class PairSockets {
 public:
  explicit PairSockets(std::vector<UniqueFd> fds);
  ~PairSockets();
  PairSockets(const PairSockets&) = delete;
  PairSockets& operator=(const PairSockets&) = delete;

  const std::vector<UniqueFd>& fds() const { return fds_; }
  // This is a forked copy: the threads of the group exist in the parent only.
  bool is_forked_copy() const { return ::getpid() != owner_; }

 private:
  std::vector<UniqueFd> fds_;
  pid_t owner_;
};

}  // namespace sluice::boot
