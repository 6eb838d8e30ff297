// One contribution from every rank to every rank, over the sockets of the pairs. Each pair's two
// messages flow at the same time and no rank stands in the middle: full socket buffers cannot block
// in a circle, and the rank that is missing is known to everybody by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "boot/contribution.h"
#include "boot/deadline.h"
#include "boot/unique_fd.h"

namespace sluice::boot {

struct Failure {
  int rank = -1;       // the peer that is to blame
  std::string reason;  // "rank 3 is gone"
};

struct ExchangeResult {
  Contributions all;
  std::optional<Failure> failure;  // then the streams are out of step: nothing may be sent any more
};

// `sequence` counts the exchanges of the group from 0. Peers that can still read a whole frame are
// told of a failure.
ExchangeResult exchange(const std::vector<UniqueFd>& peers, int rank, std::uint32_t sequence, Contribution mine,
                        const Deadline& deadline);

}  // namespace sluice::boot
