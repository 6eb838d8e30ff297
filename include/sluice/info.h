// What this library can do on this machine, for `sluice info` and for bug reports.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sluice/export.h>

namespace sluice {

struct EngineInfo {
  std::string name;        // "cpu", "cuda"
  bool usable = false;
  std::string reason;      // why not; empty when usable
  std::string await_form;  // how a lane waits for peers
  std::string detail;      // CPU: the SIMD target in use; before the first communicator, that of SLUICE_CPU_TARGET or the best
};

struct EnvironmentVariable {
  std::string name;
  std::optional<std::string> value;  // as set now; empty when not set
  std::string default_value;
  std::string meaning;
};

// Every engine this version knows, best first. Thread-safe.
SLUICE_API std::vector<EngineInfo> engines();

// Every environment variable that the library reads. Each is read when a group or communicator is
// made, never in an operation. Thread-safe as long as nobody changes the environment.
SLUICE_API std::vector<EnvironmentVariable> environment();

}  // namespace sluice
