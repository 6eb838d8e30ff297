// The JSON lines of the program.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/launch.h"

namespace sluice::cli {

using Json = nlohmann::ordered_json;

// The command line as it was given, set once by main.
void remember_command(int argc, const char* const* argv);
const std::string& command_line();

// An object with `record`, `version` and `command`.
Json make_record(const char* record);

// One object, one line, on standard output.
void print_line(const Json& object);

// {"record":"error", ...}
Json error_record(const Failure& failure);

}  // namespace sluice::cli
