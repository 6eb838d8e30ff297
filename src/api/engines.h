// The engines of this build: the one place where a new one is named.
#pragma once

#include <memory>
#include <string>

#include "boot/group_state.h"
#include "engine/engine.h"

namespace sluice::api {

struct EngineEntry {
  const char* name;
  bool checks;  // of expert ids, where neither the options nor SLUICE_CHECK say
  bool traces;  // what its lanes do
  std::int64_t (*engine_bytes)(int channels, int ranks, int experts);  // of its own in each control page
  std::unique_ptr<engine::Engine> (*make)(const engine::EngineSpec&, std::shared_ptr<boot::GroupState>);
};

// "cpu" for "". Throws ArgumentError for an unknown name, SystemError for one that is
// not usable here.
const EngineEntry& find_engine(const std::string& name);

}  // namespace sluice::api
