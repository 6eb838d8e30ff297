// Operations that have not ended when the trace ends: after a crash, in a hang, or while the program runs.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "doctor/verdict.h"

namespace sluice::doctor {

namespace {

enum class Stand : std::uint8_t { not_called, waits_for_open, moves, waits_for_close, ended };

Stand stand_of(const RankTrace& rank, int channel, std::int64_t operation) {
  for (auto op = rank.operations.rbegin(); op != rank.operations.rend(); ++op) {
    if (op->channel != channel || op->operation < operation) continue;
    if (op->operation > operation || op->outcome != OperationTrace::Outcome::running) return Stand::ended;
    return op->ready_ns == 0 ? Stand::waits_for_open : op->move_end_ns == 0 ? Stand::moves : Stand::waits_for_close;
  }
  return Stand::not_called;
}

std::string clause(Stand stand, const std::vector<int>& ranks) {
  const bool one = ranks.size() == 1;
  const std::string who = fmt::format("{} {}", one ? "rank" : "ranks", list_of(ranks));
  switch (stand) {
    case Stand::not_called: return fmt::format("{} {} not called it", who, one ? "has" : "have");
    case Stand::waits_for_open: return fmt::format("{} {} for all to enter", who, one ? "waits" : "wait");
    case Stand::moves: return fmt::format("{} {} in the move of rows", who, one ? "is" : "are");
    case Stand::waits_for_close: return fmt::format("{} {} moved and {} for the rows of others", who, one ? "has" : "have", one ? "waits" : "wait");
    default: return fmt::format("{} {} ended it", who, one ? "has" : "have");
  }
}

std::string sentence(const Traces& traces, int channel, std::int64_t operation) {
  std::map<Stand, std::vector<int>> stands;
  for (const RankTrace& rank : traces.of) stands[stand_of(rank, channel, operation)].push_back(rank.rank);
  std::vector<std::string> clauses;
  for (const auto& [stand, ranks] : stands) clauses.push_back(clause(stand, ranks));
  return fmt::format("operation {} of channel {} has not ended: {}", operation, channel, fmt::join(clauses, "; "));
}

}  // namespace

std::vector<std::string> where_ranks_stand(const Traces& traces) {
  std::map<int, std::int64_t> first;  // that runs, of each channel
  for (const RankTrace& rank : traces.of) {
    for (const OperationTrace& op : rank.operations) {
      if (op.outcome != OperationTrace::Outcome::running) continue;
      const auto [at, added] = first.try_emplace(op.channel, op.operation);
      if (!added) at->second = std::min(at->second, op.operation);
    }
  }
  std::vector<std::string> sentences;
  for (const auto& [channel, operation] : first) sentences.push_back(sentence(traces, channel, operation));
  return sentences;
}

std::string list_of(const std::vector<int>& ranks) {
  const bool row = ranks.size() > 2 && ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
  if (row) return fmt::format("{}..{}", ranks.front(), ranks.back());
  return fmt::format("{}", fmt::join(ranks, ", "));
}

}  // namespace sluice::doctor
