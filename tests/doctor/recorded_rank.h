// One rank of a recorded run.
#pragma once

#include <filesystem>
#include <string>

#include <sluice/group.h>

#include "doctor/recorded_runs.h"

namespace sluice::doctor::testing {

// Leaves a trace in `folder`, and the copies that it made in copies_name(rank) there: begin, end, bytes a line.
void play_rank(Group group, const Run& run, const std::filesystem::path& folder);
std::string copies_name(int rank);

}  // namespace sluice::doctor::testing
