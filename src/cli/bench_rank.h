// One rank of a measurement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench_case.h"
#include "cli/gpu.h"
#include "cli/launch.h"

namespace sluice::cli {

struct RankTimes {
  std::vector<double> op_us;    // per iteration: from the call to the moment its result may be used
  std::vector<double> host_us;  // of the call alone
  std::vector<std::vector<double>> copy_us;  // of the plain copy, in each of its forms
  int workers = 0;                           // a GPU engine: SMs
  int nodes = 1;
  std::string engine;
  Gpu gpu;  // where the engine is a GPU's
};

// Shared memory that run_bench_rank needs.
std::size_t bench_shared_bytes(const BenchCase& bench);

// Checks values, meets the others, and measures. Throws LaunchError ("WrongValues") when the values of
// this rank are wrong; the others then return without times.
RankTimes run_bench_rank(const BenchCase& bench, RankContext& context);

}  // namespace sluice::cli
