// The CPU engine: ranks are threads or processes of one machine, and a window is memory that they share.
#pragma once

#include <memory>

#include "boot/group_state.h"
#include "engine/engine.h"

namespace sluice::cpu {

// Collective. `spec.workers` 0: cores of this process divided by the ranks of the node, at least 1.
// Throws SystemError (memory), PeerError (a peer does not come).
std::unique_ptr<engine::Engine> make_engine(const engine::EngineSpec& spec, std::shared_ptr<boot::GroupState> group);

// Bytes of flags in each window, for the sizes that core states.
std::int64_t engine_bytes(int channels, int ranks, int experts);

}  // namespace sluice::cpu
