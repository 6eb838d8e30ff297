// The traces that ranks have left in a folder.
#pragma once

#include <sluice/trace.h>

#include <string>
#include <vector>

namespace sluice::cli {

struct TracedCommunicator {
  std::string name;
  int size = 0;                  // its ranks, whether their files are there or not
  std::vector<RankTrace> ranks;  // whose files are there, by rank
};

struct TraceFolder {
  std::vector<TracedCommunicator> communicators;  // in the order in which they were made
  int never_made = 0;                             // files of ranks whose communicator did not come about
};

// All files of `folder` whose names end in ".trace". Throws FileError when there are none, when one cannot be read or is
// broken, when two are of the same rank, and when they come from machines (or from before and after a restart of one)
// whose clocks cannot be compared.
TraceFolder read_trace_folder(const std::string& folder);

}  // namespace sluice::cli
