#include <algorithm>
#include <cmath>
#include <numeric>

#include "doctor/rules.h"

namespace sluice::doctor {

namespace {

// Less waiting is not worth a word: a program gains less than a tenth of a small part of its step.
constexpr double matters_share = 0.10;
constexpr double matters_us = 50;

// Where nobody is to blame each rank has 1 / R of it, and chance adds to that. Half way from there to everything was
// right for 2 ranks and too much for 8, of which seven have their chances too.
constexpr double beyond_chance = 0.4;

// A single hiccup of the machine is no habit of a rank.
constexpr std::size_t least_affected = 3;
constexpr double least_affected_share = 0.05;

double blamed(const Sample& sample, Meeting meeting) { return meeting == Meeting::open ? sample.blamed : sample.blamed_close; }

double column(const Matrix& matrix, std::size_t p) {
  return std::accumulate(matrix.begin(), matrix.end(), 0.0, [&](double sum, const auto& row) { return sum + row[p]; });
}

// Operations in which the others waited long, and more for `p` than for all others together.
std::vector<const Operation*> affected_by(const Case& all, std::size_t p, Meeting meeting) {
  std::vector<const Operation*> found;
  for (const Operation& op : all.operations) {
    double sum = 0;
    for (const Sample& sample : op.of) sum += blamed(sample, meeting);
    const double mine = blamed(op.of[p], meeting);
    if (mine > sum / 2 && mine > matters_us * static_cast<double>(all.ranks - 1)) found.push_back(&op);
  }
  return found;
}

// A rank that nobody is to blame for would have `fair` of the waiting.
bool stands_out(double share, int ranks) {
  const double fair = 1.0 / ranks;
  return share >= fair + beyond_chance * (1 - fair);
}

// Of the others' own time.
void measure(Suspect& found, const Case& all, const Matrix& waits) {
  const auto p = static_cast<std::size_t>(found.rank);
  double time = 0, waited = 0;
  int others = 0;
  for (std::size_t q = 0; q < waits.size(); ++q) {
    if (q == p) continue;
    waited += std::accumulate(waits[q].begin(), waits[q].end(), 0.0);
    double own = 0;
    for (const Operation& op : all.operations) own += std::isnan(op.of[q].total) ? 0 : op.of[q].total;
    time += own;
    others += own > 0 ? 1 : 0;
  }
  found.wait_share = time > 0 ? waited / time : 0;
  found.wait_us = others > 0 ? waited / others / static_cast<double>(all.operations.size()) : 0;
}

}  // namespace

const char* name_of(Class verdict) {
  constexpr const char* names[] = {"healthy", "slow_rank", "imbalance", "slow_link", "host_late", "host_copies", "slow_drain"};
  return names[static_cast<int>(verdict)];
}

std::optional<Suspect> suspect(const Case& all, Meeting meeting) {
  if (all.ranks < 2 || all.operations.empty()) return {};
  const Matrix& waits = meeting == Meeting::open ? all.waits : all.closings;
  std::vector<double> columns;
  for (std::size_t p = 0; p < waits.size(); ++p) columns.push_back(column(waits, p));
  const auto most = std::max_element(columns.begin(), columns.end());
  const double sum = std::accumulate(columns.begin(), columns.end(), 0.0);
  if (sum <= 0) return {};
  Suspect found;
  found.meeting = meeting;
  found.rank = static_cast<int>(most - columns.begin());
  found.share = *most / sum;
  measure(found, all, waits);
  if (found.wait_share < matters_share || found.wait_us < matters_us) return {};
  const auto p = static_cast<std::size_t>(found.rank);
  if (!stands_out(found.share, all.ranks)) return {};
  found.affected = affected_by(all, p, meeting);
  const auto least = std::max(least_affected, static_cast<std::size_t>(least_affected_share * static_cast<double>(all.operations.size())));
  if (found.affected.size() < least) return {};
  std::vector<double> late;
  for (const Operation* op : found.affected) {
    const Sample& mine = op->of[p];
    late.push_back(meeting == Meeting::open ? mine.late : mine.blamed_close / (all.ranks - 1));
  }
  found.late_us = median(late);
  return found;
}

}  // namespace sluice::doctor
