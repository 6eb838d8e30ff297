// Traces made up for one rule each: every rank calls, enters, moves and ends as told.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "doctor/verdict.h"

namespace sluice::doctor::testing {

// One rank in one operation, microseconds.
struct Step {
  double late = 0;       // after the first of the ranks
  double computed = 0;   // of processor time since its call before, beyond that of the others
  double move = 400;
  std::int64_t rows = 1000;  // that it sends or fetches; the same number comes from each rank
  std::int64_t tokens = 1000;
  std::int64_t held = 1000;  // rows that came to it
};
using Story = std::function<Step(int rank, int operation)>;

inline constexpr std::int64_t us = 1000;

inline std::vector<RankTrace> tell(int ranks, int operations, const Story& story) {
  std::vector<RankTrace> traces;
  for (int r = 0; r < ranks; ++r)
    traces.push_back({.communicator = "c", .host = "h", .boot_id = "b", .engine = "cpu", .process = 100 + r, .rank = r, .ranks = ranks, .channels = 1,
                      .made_ns = 1, .made_unix_ns = 1, .clock_error_ns = 30, .lost = 0, .operations = {}, .copies = {}});
  std::int64_t now = 1'000'000'000;
  std::vector<std::int64_t> cpu(static_cast<std::size_t>(ranks), 1);
  for (int n = 1; n <= operations; ++n) {
    std::vector<std::int64_t> arrived, closed;
    std::int64_t begin = 0;
    for (int r = 0; r < ranks; ++r) {
      arrived.push_back(now + 20 * us + static_cast<std::int64_t>(story(r, n).late * us));
      begin = std::max(begin, arrived.back());
    }
    for (int r = 0; r < ranks; ++r) closed.push_back(begin + us + static_cast<std::int64_t>(story(r, n).move * us));
    const std::int64_t end = *std::max_element(closed.begin(), closed.end()) + us;
    for (int r = 0; r < ranks; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const Step step = story(r, n);
      cpu[i] += 500 * us + static_cast<std::int64_t>(step.computed * us);
      OperationTrace op;
      op.combine = n % 2 == 0;
      op.operation = n;
      op.outcome = OperationTrace::Outcome::done;
      op.tokens = step.tokens;
      op.row_bytes = 1024;
      op.called_ns = op.begun_ns = arrived[i] - us;
      op.thread_cpu_ns = op.process_cpu_ns = cpu[i];
      op.ready_ns = arrived[i];
      op.move_begin_ns = begin + us;
      op.move_end_ns = closed[i];
      op.end_ns = end;
      op.arrived_ns = arrived;
      op.closed_ns = closed;
      for (int p = 0; p < ranks; ++p) op.rows_with.push_back(op.combine ? story(p, n).held / ranks : step.rows / ranks);
      traces[i].operations.push_back(op);
    }
    now = end + 100 * us;
  }
  return traces;
}

inline Diagnosis judge(std::vector<RankTrace> traces) { return diagnose(choose_traces(std::move(traces), "", "here")); }

}  // namespace sluice::doctor::testing
