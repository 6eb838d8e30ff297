#include "doctor/verdict.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sluice/errors.h>

namespace sluice::doctor {

namespace {

// The other kind of operation is then left out of the numbers: it would only thin them.
constexpr double nearly_all = 0.8;

double sum(const Matrix& matrix) {
  double all = 0;
  for (const auto& row : matrix) all = std::accumulate(row.begin(), row.end(), all);
  return all;
}

double share_of_time(const Case& all, const Matrix& waits, std::optional<int> without) {
  double time = 0, waited = 0;
  for (std::size_t q = 0; q < waits.size(); ++q) {
    if (without && static_cast<int>(q) == *without) continue;
    waited += std::accumulate(waits[q].begin(), waits[q].end(), 0.0);
    for (const Operation& op : all.operations) time += std::isnan(op.of[q].total) ? 0 : op.of[q].total;
  }
  return time > 0 ? waited / time : 0;
}

double largest_share(const Matrix& waits) {
  double most = 0;
  for (std::size_t p = 0; p < waits.size(); ++p) {
    double column = 0;
    for (const auto& row : waits) column += row[p];
    most = std::max(most, column);
  }
  const double all = sum(waits);
  return all > 0 ? most / all : 0;
}

Case choose_scope(const Case& all, std::string& scope) {
  for (const bool combine : {false, true}) {
    Case part = only(all, combine);
    if (part.operations.empty() || part.operations.size() == all.operations.size()) continue;
    if (sum(part.waits) + sum(part.closings) < nearly_all * (sum(all.waits) + sum(all.closings))) continue;
    scope = combine ? "combine" : "dispatch";
    return part;
  }
  scope = "all";
  return all;
}

Parts parts_of(const Case& all, bool combine) {
  std::array<std::vector<double>, 1 + part_names.size()> columns;  // the total first
  for (const Operation& op : all.operations) {
    if (op.combine != combine) continue;
    std::array<double, columns.size()> worst{};
    for (const OperationTrace* trace : op.trace) {
      if (!trace) continue;
      const Attribution a = attribute(*trace);
      const std::int64_t values[columns.size()] = {a.total, a.before, a.wait, a.data, a.scheduling, a.move, a.closing, a.after};
      for (std::size_t i = 0; i < worst.size(); ++i) worst[i] = std::max(worst[i], static_cast<double>(values[i]) / 1000);
    }
    for (std::size_t i = 0; i < worst.size(); ++i) columns[i].push_back(worst[i]);
  }
  Parts parts{combine, columns[0].size(), median(columns[0])};
  for (std::size_t i = 0; i < part_names.size(); ++i) parts.of[i] = median(columns[1 + i]);
  return parts;
}

double late_of_the_last(const Case& all) {
  std::vector<double> late;
  for (const Operation& op : all.operations) {
    double last = 0;
    for (const Sample& sample : op.of) last = std::max(last, sample.late);
    late.push_back(last);
  }
  return median(late);
}

using Rule = std::optional<std::string> (*)(const Case&, const Suspect&);
struct Named {
  Class verdict;
  Rule holds;
};
constexpr Named at_open[] = {{Class::host_copies, host_copies}, {Class::imbalance, imbalance}, {Class::slow_rank, slow_rank}, {Class::host_late, host_late}};
constexpr Named at_close[] = {{Class::host_copies, host_copies}, {Class::imbalance, imbalance}, {Class::slow_link, slow_link}, {Class::slow_drain, slow_drain}};

bool judge(Diagnosis& diagnosis, const Case& all, const Suspect& who) {
  for (const Named& rule : who.meeting == Meeting::open ? at_open : at_close) {
    const auto why = rule.holds(all, who);
    if (!why) continue;
    diagnosis.verdict = rule.verdict;
    diagnosis.rank = who.rank;
    diagnosis.at_close = who.meeting == Meeting::close;
    diagnosis.blame_share = who.share;
    diagnosis.late_us_p50 = who.late_us;
    diagnosis.late_operations = who.affected.size();
    diagnosis.why = *why;
    return true;
  }
  return false;
}

// The meeting that costs more comes first.
void judge(Diagnosis& diagnosis, const Case& all) {
  std::vector<Suspect> suspects;
  for (const Meeting meeting : {Meeting::open, Meeting::close}) {
    if (auto found = suspect(all, meeting)) suspects.push_back(std::move(*found));
  }
  const auto costs_more = [](const Suspect& a, const Suspect& b) { return a.wait_us * a.share > b.wait_us * b.share; };
  std::stable_sort(suspects.begin(), suspects.end(), costs_more);
  for (const Suspect& who : suspects) {
    if (judge(diagnosis, all, who)) return;
  }
  if (const auto why = copies_slow_everybody(all)) {
    diagnosis.verdict = Class::host_copies;
    diagnosis.late_us_p50 = late_of_the_last(all);
    diagnosis.blame_share = largest_share(all.waits);
    diagnosis.why = *why;
  }
}

std::vector<std::string> notes_on(const Traces& traces) {
  std::vector<std::string> notes;
  if (!traces.missing.empty())
    notes.push_back(fmt::format("the trace of {} {} is missing: how long {} waited, and why {} late, is not known",
                                traces.missing.size() == 1 ? "rank" : "ranks", list_of(traces.missing), traces.missing.size() == 1 ? "it" : "they",
                                traces.missing.size() == 1 ? "it was" : "they were"));
  if (!traces.others.empty())
    notes.push_back(fmt::format("the folder holds other communicators, which take less time: {}; --communicator chooses one", fmt::join(traces.others, ", ")));
  for (const std::string& file : traces.unread) notes.push_back("left out: " + file);
  std::int64_t lost = 0;
  for (const RankTrace& rank : traces.of) lost = std::max(lost, rank.lost);
  if (lost > 0) notes.push_back(fmt::format("{} older operations are not in the trace, which keeps the newest", lost));
  return notes;
}

}  // namespace

Diagnosis diagnose(const Traces& traces) {
  const Case all = make_case(traces);
  Diagnosis diagnosis;
  diagnosis.standing = where_ranks_stand(traces);
  if (all.operations.empty())
    throw ArgumentError(fmt::format("communicator {}: no operation but the first of a channel has ended on all {} ranks; nothing to judge{}{}",
                                    traces.communicator, traces.ranks, diagnosis.standing.empty() ? "" : "; ", fmt::join(diagnosis.standing, "; ")));
  Case scope = choose_scope(all, diagnosis.scope);
  judge(diagnosis, scope);
  if (diagnosis.verdict == Class::healthy) {
    scope = all;
    diagnosis.scope = "all";
    diagnosis.late_us_p50 = late_of_the_last(all);
    diagnosis.blame_share = largest_share(all.waits);
  }
  diagnosis.ranks = all.ranks;
  diagnosis.operations = scope.operations.size();
  diagnosis.wait_share = share_of_time(scope, scope.waits, diagnosis.rank);
  diagnosis.closing_share = share_of_time(scope, scope.closings, diagnosis.rank);
  diagnosis.matrix = scope.waits;
  diagnosis.closings = scope.closings;
  for (const bool combine : {false, true}) {
    Parts parts = parts_of(all, combine);
    if (parts.operations > 0) diagnosis.parts.push_back(parts);
  }
  diagnosis.notes = notes_on(traces);
  return diagnosis;
}

}  // namespace sluice::doctor
