// Ranks that are threads of this process.
#pragma once

#include <memory>
#include <vector>

#include "boot/group_state.h"

namespace sluice::boot {

// Element i is for the thread that plays rank i. A rank is gone when its element is dropped.
std::vector<std::shared_ptr<GroupState>> make_thread_groups(int size, int timeout_ms);

}  // namespace sluice::boot
