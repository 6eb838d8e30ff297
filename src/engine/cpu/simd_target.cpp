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

#include <strings.h>

#include <mutex>
#include <string>
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

std::int64_t target_called(const std::string& name) {
  if (strcasecmp(name.c_str(), "scalar") == 0) return targets().back();  // whatever Highway calls it
  std::string names;
  for (const std::int64_t target : targets()) {
    if (strcasecmp(name.c_str(), hwy::TargetName(target)) == 0) return target;
    names += std::string(names.empty() ? "" : ", ") + hwy::TargetName(target);
  }
  throw ArgumentError("no SIMD target is called \"" + name + "\" on this machine; choose one of " + names);
}

}  // namespace

const char* simd_target() {
  targets();
  return HWY_DYNAMIC_DISPATCH(name_here)();
}

int simd_target_count() { return static_cast<int>(targets().size()); }

const char* simd_target_name(int index) { return hwy::TargetName(targets().at(static_cast<std::size_t>(index))); }

const char* find_simd_target(const char* name) { return hwy::TargetName(target_called(name ? name : "")); }

void use_simd_target(const char* name) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  hwy::SetSupportedTargetsForTest(target_called(name ? name : ""));
  // Now, not at the next dispatch, which several threads may reach at once.
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace sluice::cpu
#endif
