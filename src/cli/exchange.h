// One rank's side of a case: the rows that it sends and the arguments of its calls.
#pragma once

#include <sluice/communicator.h>

#include <vector>

#include "cli/bench_case.h"
#include "cli/buffer.h"

namespace sluice::cli {

class Exchange {
 public:
  // `bench` must outlive it.
  Exchange(const BenchCase& bench, int rank);

  // In host memory: the calls take for_engine(args).
  DispatchArgs dispatch_args() const;

  // Of an engine: rows to bring home over the route of `sent`, filled so that check_combine knows them. They
  // take the place of the dispatched rows where the type fits.
  CombineArgs combine_args(Communicator& comm, const DispatchResult& sent) const;

 private:
  const BenchCase& bench_;
  int rank_;
  std::int64_t tokens_;
  Buffer rows_;
  std::vector<float> scales_;
};

}  // namespace sluice::cli
