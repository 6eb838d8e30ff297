// The runs that are recorded as fixtures, and the cause that each has.
#pragma once

#include <cstdint>
#include <vector>

#include <sluice/options.h>

namespace sluice::doctor::testing {

enum class Cause {
  none,
  computes,        // the culprit's own work between calls takes longer, by `delay_us` of processor time
  sleeps,          // it sleeps so long
  blocks,          // it waits so long for another thread that sleeps
  hot_experts,     // of all choices `share` go to experts of the culprit; experts take `row_us` per row
  more_tokens,     // the culprit has `share` times as many tokens
  evicted_rows,    // the rows that the culprit sends lie in a mapped file, whose pages have been evicted
  copies_first,    // it copies `copy_bytes` to other memory, and then calls
  copies_beside,   // another thread of it does while it calls, on the culprit's only core
};

struct Run {
  const char* name;
  const char* verdict;
  int culprit = -1;
  Cause cause_kind = Cause::none;
  const char* cause = "";
  int ranks = 2;
  bool processes = false;
  std::int64_t tokens = 256;
  std::int64_t hidden = 2048;
  int experts = 16;
  int topk = 2;
  Layout layout = Layout::packed;
  unsigned seed = 1;
  int delay_us = 0;
  double share = 0;
  double row_us = 0;
  std::int64_t copy_bytes = 0;
  int every = 1;            // in one of so many iterations
  bool before_combine = true, before_dispatch = true;
  int work_us = 200;        // of every rank before every call, so that there is something between them
};

const std::vector<Run>& recorded_runs();

}  // namespace sluice::doctor::testing
