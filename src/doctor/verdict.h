// From traces to a verdict.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/case.h"
#include "doctor/rules.h"

namespace sluice::doctor {

// The parts of an Attribution, in the order in which they follow each other.
inline constexpr std::array part_names{"before", "wait", "data", "scheduling", "move", "closing", "after"};

// Medians over the operations of one kind, of the slowest rank in each part; microseconds.
struct Parts {
  bool combine = false;
  std::size_t operations = 0;
  double total = 0;
  std::array<double, part_names.size()> of{};  // as part_names
};

struct Diagnosis {
  Class verdict = Class::healthy;
  std::optional<int> rank;
  std::string scope;          // "dispatch" or "combine" when nearly all of the waiting is there, else "all"; of it:
  int ranks = 0;
  std::size_t operations = 0;
  double wait_share = 0;      // for OPEN: of the time of all ranks but `rank`
  double closing_share = 0;   // for CLOSE, the same
  double blame_share = 0;     // of the waiting that the verdict is about, for `rank`; healthy: for the rank that has most
  double late_us_p50 = 0;     // in the operations that it delayed; healthy: of the last rank, in all
  std::size_t late_operations = 0;
  bool at_close = false;      // the verdict is about waiting for CLOSE
  Matrix matrix, closings;    // microseconds, row = who waited, column = for whom
  std::string why;            // what the rule found
  std::vector<Parts> parts;   // of the kinds that there are, in any scope
  std::vector<std::string> standing;  // operations that have not ended: where each rank is
  std::vector<std::string> notes;     // missing ranks, other communicators and the like
};

// Throws ArgumentError when no operation has ended on all ranks, with what stands where.
Diagnosis diagnose(const Traces& traces);

// Of operations that run on one rank or more, a sentence each.
std::vector<std::string> where_ranks_stand(const Traces& traces);

// "0, 1 and 3", "0..3".
std::string list_of(const std::vector<int>& ranks);

}  // namespace sluice::doctor
