#include "doctor/rules.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace sluice::doctor {

namespace {

// A rank that computes on a core which it shares with two others gets a third of it; one that sleeps or is blocked
// uses next to nothing. Recorded: 0.5 and more, on two busy cores, against 0.04 and less.
constexpr double computes_from = 0.3;

// A rank with so many rows more than the mean is where the routing shows; random routing stays below 1.1.
constexpr double many_rows = 1.3;
// With the same work per row, a rank takes as long per row as the others, or less where a part of the work is fixed.
constexpr double same_pace = 1.6;

// Below, moves differ by chance, by the shape and by what else runs on the cores.
constexpr double slow_pace = 2;
// So much of the operations are "always".
constexpr double always = 0.7;
// So much of what a rank is blamed for must be explained by what a rule found.
constexpr double explains = 0.5;

// A copy that takes less of the time that its rank is late does not explain it.
constexpr double copy_counts = 0.3;
// A copy fouls the caches, too, and the calls after it come a little late without one.
constexpr double copies_nearly_all = 0.8;
// Fewer operations without a copy say nothing about how it goes without.
constexpr std::size_t enough_to_compare = 5;
constexpr double slower_beside_copies = 1.5;

const Sample& of(const Operation& op, const Suspect& suspect) { return op.of[static_cast<std::size_t>(suspect.rank)]; }

template <class Value>
double median_of_others(const Operation& op, int rank, const Value& value) {
  std::vector<double> values;
  for (std::size_t q = 0; q < op.of.size(); ++q) {
    if (static_cast<int>(q) != rank) values.push_back(value(op.of[q]));
  }
  return median(values);
}

// Sums over `operations`, where both values are known.
struct Ratio {
  double over = 0, under = 0;
  void add(double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return;
    over += a;
    under += b;
  }
  double value() const { return under > 0 ? over / under : unknown; }
};

// Of its lateness, the part for which its threads ran more than the others' did between the same calls: what the
// operations themselves use is the same on all ranks.
double computed_share(const Suspect& suspect) {
  Ratio ratio;
  for (const Operation* op : suspect.affected) {
    const Sample& mine = of(*op, suspect);
    ratio.add(mine.cpu - median_of_others(*op, suspect.rank, [](const Sample& other) { return other.cpu; }), mine.late);
  }
  return std::clamp(ratio.value(), 0.0, 1.0);
}

// Per unit of work: of the suspect, in terms of the middle one of the others.
template <class Time, class Work>
double pace(const Case& all, const Suspect& suspect, const Time& time, const Work& work) {
  std::vector<Ratio> paces(static_cast<std::size_t>(all.ranks));
  for (const Operation* op : suspect.affected) {
    for (std::size_t q = 0; q < op->of.size(); ++q) paces[q].add(time(op->of[q]), work(op->of[q]));
  }
  std::vector<double> others;
  for (std::size_t q = 0; q < paces.size(); ++q) {
    if (static_cast<int>(q) != suspect.rank) others.push_back(paces[q].value());
  }
  return paces[static_cast<std::size_t>(suspect.rank)].value() / median(others);
}

template <class Work>
double times_the_mean(const Case& all, const Suspect& suspect, const Work& work) {
  Ratio ratio;
  for (const Operation* op : suspect.affected) {
    double sum = 0;
    for (const Sample& sample : op->of) sum += work(sample);
    ratio.add(work(of(*op, suspect)), sum / all.ranks);
  }
  return ratio.value();
}

double copy_of(const Sample& sample, Meeting meeting) { return meeting == Meeting::open ? sample.copying : sample.copying_move; }

double lateness(const Operation& op, const Suspect& suspect) {
  const Sample& mine = of(op, suspect);
  return suspect.meeting == Meeting::open ? mine.late : mine.blamed_close / static_cast<double>(op.of.size() - 1);
}

// Copies that do no harm elsewhere, to the suspect or to other ranks, are not the cause.
bool copies_make_the_difference(const Case& all, const Suspect& suspect) {
  const double enough = copy_counts * suspect.late_us;
  const auto beside = [&](const Sample& sample) { return copy_of(sample, suspect.meeting) >= enough ? 1.0 : 0.0; };
  std::vector<double> with, without, others;
  for (const Operation& op : all.operations) {
    (beside(of(op, suspect)) > 0 ? with : without).push_back(lateness(op, suspect));
    others.push_back(median_of_others(op, suspect.rank, beside));
  }
  if (without.size() >= enough_to_compare) return median(with) >= slower_beside_copies * std::max(0.0, median(without));
  return !(median(others) > 0);
}

struct Moves {
  std::vector<double> mine, others;  // ns per byte, in the operations of one kind
};

Moves moves_of(const Case& all, const Suspect& suspect, bool combine) {
  Moves moves;
  for (const Operation& op : all.operations) {
    if (op.combine != combine) continue;
    moves.mine.push_back(of(op, suspect).ns_per_byte());
    moves.others.push_back(median_of_others(op, suspect.rank, [](const Sample& other) { return other.ns_per_byte(); }));
  }
  return moves;
}

// The kind in which it is waited for more often.
bool mostly_combines(const Suspect& suspect) {
  const auto combines = std::count_if(suspect.affected.begin(), suspect.affected.end(), [](const Operation* op) { return op->combine; });
  return 2 * combines > static_cast<std::ptrdiff_t>(suspect.affected.size());
}

const char* kinds(bool combine) { return combine ? "combines" : "dispatches"; }

// 1 byte per ns is 1 GB/s.
std::string speed(double ns_per_byte) { return fmt::format("{:.2g} GB/s", 1 / ns_per_byte); }

}  // namespace

std::optional<std::string> host_copies(const Case& all, const Suspect& suspect) {
  const bool open = suspect.meeting == Meeting::open;
  double blamed = 0, explained = 0;
  std::vector<double> speeds;
  for (const Operation* op : suspect.affected) {
    const Sample& mine = of(*op, suspect);
    if (std::isnan(copy_of(mine, suspect.meeting))) continue;  // the first of a trace: what was before it is not known
    const double blame = open ? mine.blamed : mine.blamed_close;
    const bool beside = copy_of(mine, suspect.meeting) >= copy_counts * lateness(*op, suspect);
    blamed += blame;
    explained += beside ? blame : 0;
    if (beside) speeds.push_back(mine.copy_gbs);
  }
  if (speeds.empty() || explained < copies_nearly_all * blamed || !copies_make_the_difference(all, suspect)) return {};
  return fmt::format("its copies go on in {:.0f} % of that time, at {:.2g} GB/s", 100 * explained / blamed, median(speeds));
}

std::optional<std::string> imbalance(const Case& all, const Suspect& suspect) {
  const bool open = suspect.meeting == Meeting::open;
  const auto work = [&](const Sample& sample) { return open ? sample.load : sample.bytes; };
  const double rows = times_the_mean(all, suspect, work);
  const double pace_of_it = pace(all, suspect, [&](const Sample& sample) { return open ? sample.span : sample.move; }, work);
  if (!(rows >= many_rows) || !(pace_of_it <= same_pace)) return {};
  return fmt::format("it has {:.1f} x the mean of {} and takes {:.2g} x as long for each as the others", rows,
                     open ? (mostly_combines(suspect) ? "rows to work on" : "tokens") : "bytes to move", pace_of_it);
}

std::optional<std::string> slow_rank(const Case&, const Suspect& suspect) {
  const double share = computed_share(suspect);
  if (!(share >= computes_from)) return {};
  return fmt::format("for {:.0f} % of that time its threads compute", 100 * share);
}

std::optional<std::string> host_late(const Case&, const Suspect& suspect) {
  const double share = computed_share(suspect);
  if (std::isnan(share)) return "what its threads do meanwhile is not known, since its trace is missing";
  if (share >= computes_from) return {};
  return fmt::format("its threads run for {:.0f} % of that time, else they sleep or wait for something", 100 * share);
}

std::optional<std::string> slow_link(const Case& all, const Suspect& suspect) {
  const bool combine = mostly_combines(suspect);
  const Moves moves = moves_of(all, suspect, combine);
  const double others = median(moves.others), mine = median(moves.mine);
  if (!(mine >= slow_pace * others)) return {};
  const auto slow = std::count_if(moves.mine.begin(), moves.mine.end(), [&](double pace_of_it) { return pace_of_it >= slow_pace * others; });
  if (static_cast<double>(slow) < always * static_cast<double>(moves.mine.size())) return {};
  return fmt::format("it moves at {} and the others at {}, in {} of {} {}", speed(mine), speed(others), slow, moves.mine.size(), kinds(combine));
}

std::optional<std::string> slow_drain(const Case& all, const Suspect& suspect) {
  const bool combine = mostly_combines(suspect);
  const Moves moves = moves_of(all, suspect, combine);
  const double usual = median(moves.mine);
  std::vector<double> slow;
  double explained = 0, blamed = 0;
  for (const Operation* op : suspect.affected) {
    const Sample& mine = of(*op, suspect);
    const bool is_slow = op->combine == combine && mine.ns_per_byte() >= slow_pace * usual;
    if (is_slow) slow.push_back(mine.ns_per_byte());
    explained += is_slow ? mine.blamed_close : 0;
    blamed += mine.blamed_close;
  }
  if (slow.empty() || explained < explains * blamed || 2 * slow.size() > moves.mine.size()) return {};
  return fmt::format("in {} of {} {} its move runs at {}, else at {}", slow.size(), moves.mine.size(), kinds(combine), speed(median(slow)), speed(usual));
}

std::optional<std::string> copies_slow_everybody(const Case& all) {
  for (const bool combine : {false, true}) {
    std::vector<double> with, without;
    for (const Operation& op : all.operations) {
      if (op.combine != combine) continue;
      double copied = 0, total = 0;
      for (const Sample& sample : op.of) {
        copied += sample.copying_move;
        total += std::isnan(sample.total) ? 0 : sample.total;
      }
      (copied >= copy_counts * total ? with : without).push_back(total);
    }
    if (std::min(with.size(), without.size()) < enough_to_compare) continue;
    const double ratio = median(with) / median(without);
    if (ratio < slower_beside_copies) continue;
    return fmt::format("{} of {} {} run beside copies, on all ranks alike, and take {:.1f} x as long as the others", with.size(),
                       with.size() + without.size(), kinds(combine), ratio);
  }
  return {};
}

}  // namespace sluice::doctor
