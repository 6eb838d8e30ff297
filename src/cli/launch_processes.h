// Ranks as child processes; see launch.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/launch.h"
#include "cli/shared_block.h"

namespace sluice::cli {

// Results in rank order; what went wrong in `failures` [ranks]. A signal that ends programs is passed on
// to the children, and ends this process when they have gone.
std::vector<std::string> run_processes(const RankFunction& function, int ranks, SharedBlock& shared,
                                       std::vector<std::optional<Failure>>& failures);

}  // namespace sluice::cli
