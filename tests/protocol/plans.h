// Shorthand of the tests.
#pragma once

#include "protocol/scenario.h"

namespace sluice::protocol {

inline Plan plan_of(int ranks, int channels, const char* ops) {
  Plan plan;
  plan.ranks = ranks;
  plan.channels = channels;
  plan.ops = ops;
  return plan;
}

}  // namespace sluice::protocol
