// The CUDA engine: ranks are threads or processes of one machine, each with a GPU or sharing one.
#pragma once

#include <memory>
#include <string>

#include "boot/group_state.h"
#include "engine/engine.h"

namespace sluice::cuda {

// Collective. Rank r uses GPU r modulo the number that this process sees. Throws SystemError (memory, CUDA),
// PeerError (a peer does not come).
std::unique_ptr<engine::Engine> make_engine(const engine::EngineSpec& spec, std::shared_ptr<boot::GroupState> group);

// Bytes of channel states, tables and scratch in each window, for the sizes that core states.
std::int64_t engine_bytes(int channels, int ranks, int experts);

// Empty when the engine can run here; else one sentence.
const std::string& why_not();

}  // namespace sluice::cuda
