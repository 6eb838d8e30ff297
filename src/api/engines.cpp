#include "api/engines.h"

#include <fmt/format.h>

#include <sluice/errors.h>
#include <sluice/info.h>

#include "api/environment.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/rows.h"

namespace sluice {

namespace {
constexpr const char* no_cuda = "this version has no CUDA engine yet";
}

std::vector<EngineInfo> engines() {
  return {{"cuda", false, no_cuda, "", ""},
          {"cpu", true, "", "spins briefly, then sleeps on a futex", cpu::simd_target()}};
}

namespace api {

const EngineEntry& find_engine(const std::string& name) {
  static constexpr EngineEntry cpu{"cpu", cpu::flag_bytes, cpu::make_engine};
  if (name.empty() || name == "cpu") {
    // Once: the target is the process's, and must not change while operations run.
    static const bool chosen = [] {
      const std::string target = cpu_target_from_environment();
      if (!target.empty()) cpu::use_simd_target(target.c_str());
      return true;
    }();
    static_cast<void>(chosen);
    return cpu;
  }
  if (name == "cuda") throw SystemError(fmt::format("engine \"cuda\" is not usable here: {}", no_cuda));
  throw ArgumentError(fmt::format("engine \"{}\" is unknown; known are \"cpu\" and \"cuda\"", name));
}

}  // namespace api
}  // namespace sluice
