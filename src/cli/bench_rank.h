// One rank of a measurement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench_case.h"
#include "cli/gpu.h"
#include "cli/launch.h"

namespace sluice::cli {

// What starts first: the operation (or its yardstick) has the machine to itself, or GEMMs start after or
// before it.
enum class Start { alone, op, gemm };

// Of one start, per iteration.
struct Series {
  std::vector<double> op_us;                 // from the call to the moment its result may be used
  std::vector<double> host_us;               // of the call alone
  std::vector<std::vector<double>> copy_us;  // of the plain copy, in each of its forms
  // Of the GPU alone, where that can be told: of the operation and of the plain copy.
  std::vector<double> gpu_us;
  std::vector<double> copy_gpu_us;
  // Per GEMM, on the ranks that start them: beside the operation, and with as many SMs beside nothing.
  std::vector<double> gemm_us;
  std::vector<double> gemm_alone_us;
  // Traced: of the operation, to its wait and to its move.
  std::vector<double> wait_us;
  std::vector<double> move_us;
};

struct RankTimes {
  std::vector<Series> series;  // by start; only `alone` without --overlap
  std::vector<double> wait_for_us;  // traced: how long this rank waited for each, median
  int gemm_sms = 0;            // to which GEMMs that start first are limited
  int workers = 0;             // a GPU engine: SMs
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
