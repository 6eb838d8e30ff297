#include "boot/group_state.h"

namespace sluice::boot {

GroupState::~GroupState() = default;

}  // namespace sluice::boot
