// What machine this is, for reports.
#pragma once

#include <string>

namespace sluice::cli {

struct Machine {
  std::string cpu;  // model name
  int cores = 0;    // that this process may use
  int numa_nodes = 0;
  std::string os;  // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0"
};

Machine this_machine();

}  // namespace sluice::cli
