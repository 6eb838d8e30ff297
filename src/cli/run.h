// `sluice run`: starts a program as N ranks.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

// Arguments behind "run". They are read by hand: everything behind the program's name is the program's.
// Returns the exit code.
int run_main(const std::vector<std::string>& arguments);

}  // namespace sluice::cli
