// One rank's part in a collective of a group, and what is checked about all parts in every kind of group.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "boot/unique_fd.h"
#include "boot/wire.h"

namespace sluice::boot {

struct Contribution {
  FrameKind kind = FrameKind::barrier;  // of a collective, or refused
  std::vector<std::byte> bytes;         // refused: the reason, as text
  UniqueFd descriptor;
  std::weak_ptr<void> object;  // a part must keep nothing alive: it lies on the table until the exchange after the next
};
using Contributions = std::vector<std::shared_ptr<Contribution>>;  // by rank

const char* name_of(FrameKind kind);

// A contribution that only says no: the peers get PeerError with the reason, the group stays usable.
Contribution refusal(const std::string& why);

// Throws what a collective must throw when a rank refused or ranks make different calls. `call` is
// this rank's, also when it refuses (then ArgumentError with its reason).
void check_contributions(const Contributions& all, int rank, FrameKind call);

// The all_gather message of `bytes`, or the refusal of one that is too long.
Contribution gather_contribution(std::span<const std::byte> bytes);

// Throws the ArgumentError of a rank whose process is not the one that made the group.
[[noreturn]] void refuse_forked_copy(FrameKind call, int rank, int size);

// "all_gather on rank 3 of 16"
std::string where(FrameKind call, int rank, int size);

}  // namespace sluice::boot
