#include "engine/cpu/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/simd_target.cpp"
#include <hwy/foreach_target.h>
// The order matters.
#include <hwy/highway.h>

#include "engine/cpu/rows.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

const char* name_here() { return hwy::TargetName(HWY_TARGET); }

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/errors.h>

namespace sluice::cpu {
namespace {

HWY_EXPORT(name_here);

// Asked for once, before use_simd_target narrows what Highway answers.
const std::vector<std::int64_t>& targets() {
  static const std::vector<std::int64_t> all = [] {
    const auto found = hwy::SupportedAndGeneratedTargets();
    return std::vector<std::int64_t>(found.begin(), found.end());
  }();
  return all;
}

std::int64_t target_called(std::string_view name) {
  if (name == "scalar") return targets().back();
  std::string names;
  for (const std::int64_t target : targets()) {
    if (name == hwy::TargetName(target)) return target;
    names += std::string(names.empty() ? "" : ", ") + hwy::TargetName(target);
  }
  throw ArgumentError("no SIMD target is called \"" + std::string(name) + "\" on this machine; choose one of " +
                      names + ", or \"scalar\"");
}

}  // namespace

const char* simd_target() {
  targets();
  return HWY_DYNAMIC_DISPATCH(name_here)();
}

int simd_target_count() { return static_cast<int>(targets().size()); }

const char* simd_target_name(int index) { return hwy::TargetName(targets().at(static_cast<std::size_t>(index))); }

void use_simd_target(const char* name) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  hwy::SetSupportedTargetsForTest(target_called(name ? name : ""));
  // Now, not at the next dispatch, which several threads may reach at once.
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace sluice::cpu
#endif
