#include "doctor/text.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace sluice::doctor {

namespace {

std::string scope_name(const Diagnosis& diagnosis) {
  if (diagnosis.scope != "all") return diagnosis.scope;
  if (diagnosis.parts.size() == 1) return diagnosis.parts.front().combine ? "combine" : "dispatch";
  return "dispatch and combine";
}

std::string others_than(const Diagnosis& diagnosis) {
  std::vector<int> others;
  for (int r = 0; r < diagnosis.ranks; ++r) {
    if (r != diagnosis.rank) others.push_back(r);
  }
  return fmt::format("{} {}", others.size() == 1 ? "rank" : "ranks", list_of(others));
}

double percent(double share) { return 100 * share; }

std::string healthy(const Diagnosis& diagnosis) {
  return fmt::format("{}: {:.0f} % of the time is waiting, for no rank in particular or too little to matter; nothing stands out "
                     "in {} operations [healthy]",
                     scope_name(diagnosis), percent(diagnosis.wait_share), diagnosis.operations);
}

std::string late(const Diagnosis& diagnosis) {
  return fmt::format("{}: {:.0f} % of the time of {} is waiting. {:.0f} % of it is for rank {}, which enters {} late in {} of {} "
                     "operations; {} [{}]",
                     scope_name(diagnosis), percent(diagnosis.wait_share), others_than(diagnosis), percent(diagnosis.blame_share), *diagnosis.rank,
                     duration(diagnosis.late_us_p50), diagnosis.late_operations, diagnosis.operations, diagnosis.why, name_of(diagnosis.verdict));
}

std::string slow(const Diagnosis& diagnosis) {
  return fmt::format("{}: for {:.0f} % of their time {} {} moved and the rows of others are on their way. {:.0f} % of it is for rank {}, which "
                     "ends {} after them in {} of {} operations; {} [{}]",
                     scope_name(diagnosis), percent(diagnosis.closing_share), others_than(diagnosis), diagnosis.ranks == 2 ? "has" : "have",
                     percent(diagnosis.blame_share), *diagnosis.rank, duration(diagnosis.late_us_p50), diagnosis.late_operations,
                     diagnosis.operations, diagnosis.why, name_of(diagnosis.verdict));
}

std::string matrix_text(const Matrix& matrix, std::size_t operations) {
  std::string text = "       ";
  for (std::size_t p = 0; p < matrix.size(); ++p) text += fmt::format("{:>10}", fmt::format("for r{}", p));
  text += "\n";
  for (std::size_t q = 0; q < matrix.size(); ++q) {
    text += fmt::format("  {:>4} ", fmt::format("r{}", q));
    for (const double us : matrix[q]) text += fmt::format("{:>10.1f}", us / static_cast<double>(operations));
    text += "\n";
  }
  return text;
}

std::string parts_text(const std::vector<Parts>& parts) {
  const auto width = [](std::string_view name) { return std::max<std::size_t>(10, name.size() + 1); };
  std::string text = fmt::format("  {:<10}{:>6}{:>10}", "", "n", "total");
  for (const std::string_view name : part_names) text += fmt::format("{:>{}}", name, width(name));
  text += "\n";
  for (const Parts& p : parts) {
    text += fmt::format("  {:<10}{:>6}{:>10.1f}", p.combine ? "combine" : "dispatch", p.operations, p.total);
    for (std::size_t i = 0; i < p.of.size(); ++i) text += fmt::format("{:>{}.1f}", p.of[i], width(part_names[i]));
    text += "\n";
  }
  return text;
}

}  // namespace

std::string duration(double us) {
  if (us < 1000) return fmt::format("{:.0f} us", us);
  return us < 1e6 ? fmt::format("{:.1f} ms", us / 1000) : fmt::format("{:.1f} s", us / 1e6);
}

std::string headline(const Diagnosis& diagnosis) {
  if (diagnosis.verdict == Class::healthy) return healthy(diagnosis);
  if (!diagnosis.rank) return fmt::format("{}: {} [{}]", scope_name(diagnosis), diagnosis.why, name_of(diagnosis.verdict));
  return diagnosis.at_close ? slow(diagnosis) : late(diagnosis);
}

std::string advice(const Diagnosis& diagnosis) {
  switch (diagnosis.verdict) {
    case Class::healthy: return "Nothing. What waiting there is goes round, as it does where ranks share cores or differ by chance.";
    case Class::slow_rank:
      return "Look at what that rank computes between the calls: a slower or shared core, more work than its peers, work that one rank "
             "alone does (logging, evaluation, data).";
    case Class::imbalance:
      return "Balance the work: a balancing loss or bias in the router, more or redundant experts spread over the ranks, a capacity, even "
             "batches.";
    case Class::slow_link:
      return "Look at the memory and the links of that rank: where its rows lie (swapped, mapped from a file, on another NUMA node), what else "
             "uses its link, how many workers or SMs it has.";
    case Class::host_late:
      return "Look at what that rank's threads wait for before the call: a lock, a file, a device, an interpreter, other programs on its cores. "
             "A profile of its host, not of its operations, shows it.";
    case Class::host_copies:
      return "Move the copies out of the way: in pieces between the operations, or at a lower rate.";
    case Class::slow_drain:
      return "Look at what happens on that rank in those operations alone: page faults, write-back, other programs, a link that resets or slows "
             "down. `sluice trace merge` shows when.";
  }
  return {};
}

std::string text_of(const Diagnosis& diagnosis) {
  std::string text = headline(diagnosis) + "\n";
  for (const std::string& sentence : diagnosis.standing) text += fmt::format("Not ended: {}.\n", sentence);
  text += fmt::format("\nWaited for the last to enter, us per operation ({}), who (down) for whom (across):\n\n", scope_name(diagnosis));
  text += matrix_text(diagnosis.matrix, diagnosis.operations);
  if (diagnosis.at_close) {
    text += "\nWaited for the rows of others, us per operation, who (down) for whom (across):\n\n";
    text += matrix_text(diagnosis.closings, diagnosis.operations);
  }
  text += "\nParts of the time, us, each of the rank where it is longest, median:\n\n" + parts_text(diagnosis.parts);
  text += "\nWhat to do: " + advice(diagnosis) + "\n";
  for (const std::string& note : diagnosis.notes) text += "Note: " + note + ".\n";
  return text;
}

}  // namespace sluice::doctor
