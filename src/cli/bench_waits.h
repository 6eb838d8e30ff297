// What the measured iterations waited for, and whom, from the trace of the operations.
#pragma once

#include <sluice/trace.h>

#include <vector>

#include "cli/json.h"

namespace sluice::cli {

// Of one rank.
struct Waits {
  std::vector<double> wait_us;      // per iteration
  std::vector<double> move_us;      // per iteration
  std::vector<double> wait_for_us;  // per rank: median over the iterations of the blame
};

// The last `iterations` operations of `trace` are those of the measured iterations.
Waits waits_of(const std::vector<OperationTrace>& trace, int iterations);

// Of a record of the bench whose `wait_for` is not null.
void print_waits(const Json& record);

}  // namespace sluice::cli
