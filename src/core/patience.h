// When a rank that awaits its peers gives up, and with which status: one rule for all engines.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/status.h"

namespace sluice::core {

// An await that goes on.
struct Patience {
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  Stage stage = Stage::open;
  OperationKind kind = OperationKind::none;
  std::int64_t operation = 0;
  std::int64_t awaited = 0;  // operation whose signal is awaited
  std::int64_t began_ns = 0;
  std::int64_t deadline_ns = 0;  // from then on; 0 = without end
  std::int64_t leave_at_ns = 0;  // the communicator is being destroyed: it ends at this moment; 0 = it is not

  // Negative: without end.
  std::int64_t left_ns(std::int64_t now_ns) const {
    if (deadline_ns == 0 && leave_at_ns == 0) return -1;
    std::int64_t end = deadline_ns == 0 ? leave_at_ns : began_ns + deadline_ns;
    if (leave_at_ns != 0) end = std::min(end, leave_at_ns);
    return std::max<std::int64_t>(end - now_ns, 0);
  }
};

// Read in this order: a peer that signalled and then left has arrived.
struct PeerSeen {
  bool gone = false;
  Status told;
  bool arrived = false;
};

template <class See>
Status status_without(int peer, Cause cause, const Patience& wait, std::int64_t now_ns, const See& see) {
  Status status{.failed = 1, .cause = cause, .by = wait.rank, .waiting_for = peer, .stage = wait.stage};
  status.kind = wait.kind;
  status.operation = wait.operation;
  status.awaited = wait.awaited;
  status.waited_ms = (now_ns - wait.began_ns) / 1'000'000;
  status.expected = wait.ranks - 1;
  for (int p = 0; p < wait.ranks; ++p) status.arrived += p != wait.rank && see(p).arrived;
  return status;
}

// Not failed: there is no reason yet, or everybody has arrived. `see(peer)` looks at a peer now.
template <class See>
Status reason_to_give_up(const Patience& wait, std::int64_t now_ns, const See& see) {
  int missing = -1;
  for (int peer = 0; peer < wait.ranks; ++peer) {
    if (peer == wait.rank) continue;
    const PeerSeen seen = see(peer);
    if (seen.told.failed && seen.told.operation <= wait.operation) return seen.told;
    if (seen.arrived) continue;
    if (seen.gone) return status_without(peer, Cause::gone, wait, now_ns, see);
    if (missing < 0) missing = peer;
  }
  if (missing < 0 || wait.left_ns(now_ns) != 0) return {};
  return status_without(missing, wait.leave_at_ns != 0 ? Cause::leaving : Cause::deadline, wait, now_ns, see);
}

}  // namespace sluice::core
