// The grid of a count, for plan and for finish.
#pragma once

#include "engine/cuda/count.cuh"
#include "engine/cuda/launch.h"

namespace sluice::cuda {

struct CountShape {
  unsigned blocks = 1;
  CountScratch scratch;
};

// For `tokens` of this rank; the scratch holds blocks * (units_per_block + 1) rows of `columns`.
CountShape count_shape(const Launch& how, std::int64_t tokens, std::int64_t columns);

}  // namespace sluice::cuda
