// What the environment says to src/api; boot and the CUDA engine read theirs. Read when a group or communicator is
// made, never in an operation.
#pragma once

#include <optional>
#include <string>

namespace sluice::api {

// SLUICE_CHECK: unset, or 0 or 1. Throws ArgumentError for anything else.
std::optional<bool> check_from_environment();

// SLUICE_TRACE: a folder, or empty.
std::string trace_dir_from_environment();

// SLUICE_CPU_TARGET: name of a SIMD target, or empty.
std::string cpu_target_from_environment();

}  // namespace sluice::api
