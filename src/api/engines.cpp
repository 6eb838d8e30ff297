#include "api/engines.h"

#include <atomic>

#include <fmt/format.h>

#include <sluice/errors.h>
#include <sluice/info.h>

#include "api/environment.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/rows.h"
#if defined(SLUICE_CUDA)
#include "engine/cuda/cuda_engine.h"
#endif

namespace sluice {

namespace {

// Empty when it can be used.
std::string no_cuda() {
#if defined(SLUICE_CUDA)
  return cuda::why_not();
#else
  return "this library was built without it";
#endif
}

// Once: the target is the process's, and must not change while operations run.
std::atomic<bool> target_taken = false;

void take_target() {
  static const bool taken = [] {
    const std::string target = api::cpu_target_from_environment();
    if (!target.empty()) cpu::use_simd_target(target.c_str());
    return true;
  }();
  target_taken = taken;
}

// The target in use or, before the first communicator, the one that it would take.
EngineInfo cpu_info() {
  try {
    const std::string target = target_taken ? "" : api::cpu_target_from_environment();
    return {"cpu", true, "", "spins briefly, then sleeps on a futex",
            target.empty() ? cpu::simd_target() : cpu::find_simd_target(target.c_str())};
  } catch (const ArgumentError& error) {
    return {"cpu", false, error.what(), "", ""};
  }
}

}  // namespace

std::vector<EngineInfo> engines() {
  const std::string reason = no_cuda();
  return {{"cuda", reason.empty(), reason, reason.empty() ? "stream memory operations, or a host thread" : "", ""}, cpu_info()};
}

namespace api {

const EngineEntry& find_engine(const std::string& name) {
  static constexpr EngineEntry cpu{"cpu", true, true, cpu::engine_bytes, cpu::make_engine};
  if (name.empty() || name == "cpu") {
    take_target();
    return cpu;
  }
  if (name == "cuda") {
    const std::string reason = no_cuda();
    if (!reason.empty()) throw SystemError(fmt::format("engine \"cuda\" is not usable here: {}", reason));
#if defined(SLUICE_CUDA)
    static constexpr EngineEntry entry{"cuda", false, false, cuda::engine_bytes, cuda::make_engine};
    return entry;
#endif
  }
  throw ArgumentError(fmt::format("engine \"{}\" is unknown; known are \"cpu\" and \"cuda\"", name));
}

}  // namespace api
}  // namespace sluice
