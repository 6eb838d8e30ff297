#include "api/environment.h"

#include <cstdlib>

#include <fmt/format.h>

#include <sluice/errors.h>
#include <sluice/info.h>

#include "boot/environment.h"

namespace sluice {

std::vector<EnvironmentVariable> environment() {
  std::vector<EnvironmentVariable> all = {
      {"SLUICE_CHECK", {}, "1 on the CPU engine", "expert ids are checked (1) or not (0) in calls that do not say"},
      {"SLUICE_CPU_TARGET", {}, "the best of this machine", "SIMD target of the CPU engine, for example AVX2 or scalar"},
      {"SLUICE_CUDA_AWAIT", {}, "by the number of hardware queues", "how lanes of the CUDA engine wait for peers: stream or host"},
      {"SLUICE_CUDA_WINDOW", {}, "virtual where the GPUs can", "memory of windows of the CUDA engine: virtual, or plain (CUDA IPC)"},
      {"SLUICE_TRACE", {}, "", "folder in which every communicator writes what it waited for (sluice doctor reads it); CPU engine alone"},
      {"CUDA_DEVICE_MAX_CONNECTIONS", {}, "8", "hardware queues of this process (CUDA); 32 lets more streams wait"},
  };
  for (const boot::Variable& variable : boot::launcher_variables()) all.push_back({variable.name, {}, "", variable.meaning});
  for (EnvironmentVariable& variable : all) {
    if (const char* const value = std::getenv(variable.name.c_str())) variable.value = value;
  }
  return all;
}

namespace api {

std::optional<bool> check_from_environment() {
  const char* const value = std::getenv("SLUICE_CHECK");
  const std::string text = value ? value : "";
  if (text.empty()) return {};
  if (text == "0") return false;
  if (text == "1") return true;
  throw ArgumentError(fmt::format("SLUICE_CHECK = \"{}\" is neither 0 nor 1", text));
}

std::string trace_dir_from_environment() {
  const char* const value = std::getenv("SLUICE_TRACE");
  return value ? value : "";
}

std::string cpu_target_from_environment() {
  const char* const value = std::getenv("SLUICE_CPU_TARGET");
  return value ? value : "";
}

}  // namespace api
}  // namespace sluice
