// What the rules look at: each operation with its ranks side by side.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "doctor/traces.h"

namespace sluice::doctor {

// Row = who waited, column = for whom.
using Matrix = std::vector<std::vector<double>>;

inline constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

// One rank in one operation; microseconds. `unknown` where its trace is missing.
struct Sample {
  double late = 0;           // its OPEN came so long after the middle one of the others'; negative: before it
  double blamed = 0;         // what the others waited for its OPEN, and for its CLOSE, together
  double blamed_close = 0;
  double total = unknown;    // of its own time
  double wait = unknown;
  double closing = unknown;
  double move = unknown;
  double span = unknown;     // from the last CLOSE of the operation before to its OPEN
  double cpu = unknown;      // processor time from its call before to this call
  double load = unknown;     // what it works on before it enters. combine: rows that came to it; dispatch: its tokens
  double bytes = unknown;    // that it moves
  double copying = unknown;  // of the time from the end of the operation before to its OPEN, beside copies
  double copying_move = 0;   // of its move, beside copies
  double copy_gbs = unknown; // of the copies of which some part was then
  double ns_per_byte() const { return bytes > 0 ? move * 1000 / bytes : unknown; }
};

struct Operation {
  bool combine = false;
  int channel = 0;
  std::int64_t number = 0;
  std::vector<Sample> of;    // [R]
  std::vector<const OperationTrace*> trace;  // [R]; null: missing
};

struct Case {
  int ranks = 0;
  std::vector<Operation> operations;  // that ended well on all ranks whose traces are there, by time
  Matrix waits, closings;             // microseconds for OPEN and for CLOSE, over all operations
};

// `traces` must outlive the case. Left out: the first operation of a channel, since its waits are those for programs
// that start.
Case make_case(const Traces& traces);

// Its dispatches, or its combines, alone.
Case only(const Case& all, bool combine);

double median(std::vector<double> values);  // without those that are unknown; unknown when none is left

}  // namespace sluice::doctor
