#include "doctor/case.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace sluice::doctor {

namespace {

// As attribute() shares the blame for OPEN.
constexpr double as_late_as = 0.9;

double us(std::int64_t ns) { return static_cast<double>(ns) / 1000; }

std::int64_t last_close(const OperationTrace& op) {
  return op.closed_ns.empty() ? 0 : *std::max_element(op.closed_ns.begin(), op.closed_ns.end());
}

// Of a rank's operations, the one that it called before each.
using Before = std::map<const OperationTrace*, const OperationTrace*>;

Before befores(const Traces& traces) {
  Before before;
  for (const RankTrace& trace : traces.of) {
    for (std::size_t i = 1; i < trace.operations.size(); ++i) before[&trace.operations[i]] = &trace.operations[i - 1];
  }
  return before;
}

// Ranks that are threads share their process's time.
std::set<int> with_own_process(const Traces& traces) {
  std::map<std::int64_t, int> users;
  for (const RankTrace& trace : traces.of) ++users[trace.process];
  std::set<int> own;
  for (const RankTrace& trace : traces.of) {
    if (users[trace.process] == 1) own.insert(trace.rank);
  }
  return own;
}

double copying(const std::vector<CopyTrace>& copies, std::int64_t begin, std::int64_t end) {
  std::int64_t sum = 0, reached = begin;
  for (const CopyTrace& copy : copies) {
    const std::int64_t from = std::max(reached, copy.begun_ns), to = std::min(end, copy.end_ns);
    if (to <= from) continue;
    sum += to - from;
    reached = to;
  }
  return us(sum);
}

double speed_of(const std::vector<CopyTrace>& copies, std::int64_t begin, std::int64_t end) {
  double bytes = 0, ns = 0;
  for (const CopyTrace& copy : copies) {
    if (copy.end_ns <= begin || copy.begun_ns >= end) continue;
    bytes += static_cast<double>(copy.bytes);
    ns += static_cast<double>(copy.end_ns - copy.begun_ns);
  }
  return ns > 0 ? bytes / ns : unknown;
}

std::vector<Operation> match(const Traces& traces) {
  std::map<std::pair<int, std::int64_t>, Operation> found;
  for (const RankTrace& trace : traces.of) {
    for (const OperationTrace& op : trace.operations) {
      const bool whole = op.outcome == OperationTrace::Outcome::done && op.operation > 1 &&
                         op.arrived_ns.size() == static_cast<std::size_t>(traces.ranks) && op.closed_ns.size() == op.arrived_ns.size();
      if (!whole) continue;
      Operation& joint = found[{op.channel, op.operation}];
      joint.combine = op.combine;
      joint.channel = op.channel;
      joint.number = op.operation;
      joint.trace.resize(static_cast<std::size_t>(traces.ranks));
      joint.trace[static_cast<std::size_t>(trace.rank)] = &op;
    }
  }
  std::vector<Operation> all;
  for (auto& [key, joint] : found) {
    const auto there = std::count_if(joint.trace.begin(), joint.trace.end(), [](const auto* op) { return op != nullptr; });
    if (there == static_cast<std::ptrdiff_t>(traces.of.size())) all.push_back(std::move(joint));
  }
  return all;
}

// Who is waited for at the end is found as at the beginning: the last, and those that are nearly as late.
void blame_for_close(const Attribution& parts, std::vector<double>& blame) {
  const auto worst = static_cast<double>(*std::max_element(parts.peer_move.begin(), parts.peer_move.end()));
  const auto shares = [&](std::int64_t time) { return time > 0 && static_cast<double>(time) >= as_late_as * worst; };
  const auto sharers = std::count_if(parts.peer_move.begin(), parts.peer_move.end(), shares);
  for (std::size_t p = 0; p < blame.size(); ++p)
    blame[p] = shares(parts.peer_move[p]) ? us(parts.closing) / static_cast<double>(sharers) : 0;
}

void fill_own(Sample& sample, const OperationTrace& op, const Attribution& parts) {
  sample.total = us(parts.total);
  sample.wait = us(parts.wait);
  sample.closing = us(parts.closing);
  sample.move = us(parts.move);
  double rows = 0;
  for (const std::int64_t with : op.rows_with) rows += static_cast<double>(with);
  sample.bytes = rows * static_cast<double>(op.row_bytes);
}

void fill_since(Sample& sample, const OperationTrace& op, const OperationTrace& before, const RankTrace& rank, bool own_process) {
  sample.span = us(std::max<std::int64_t>(0, op.ready_ns - last_close(before)));
  sample.cpu = own_process ? us(op.process_cpu_ns - before.process_cpu_ns) : us(op.thread_cpu_ns - before.thread_cpu_ns);
  sample.copying = copying(rank.copies, before.end_ns, op.ready_ns);
  sample.copy_gbs = speed_of(rank.copies, before.end_ns, op.end_ns);
}

// Rows that came to each rank are those that its peers fetch again.
void fill_load(Operation& op) {
  for (std::size_t p = 0; p < op.of.size(); ++p) {
    double rows = 0;
    for (const OperationTrace* other : op.trace) rows += other && p < other->rows_with.size() ? static_cast<double>(other->rows_with[p]) : 0;
    op.of[p].load = op.combine ? rows : op.trace[p] ? static_cast<double>(op.trace[p]->tokens) : unknown;
  }
}

void fill_late(Operation& op) {
  const auto known = std::find_if(op.trace.begin(), op.trace.end(), [](const auto* trace) { return trace != nullptr; });
  const std::vector<std::int64_t>& arrived = (*known)->arrived_ns;  // every rank knows it of all
  for (std::size_t p = 0; p < op.of.size(); ++p) {
    std::vector<double> others;
    for (std::size_t q = 0; q < arrived.size(); ++q) {
      if (q != p) others.push_back(us(arrived[q] - arrived[p]));
    }
    op.of[p].late = others.empty() ? 0 : -median(others);
  }
}

void add(Matrix& matrix, std::size_t row, const std::vector<double>& values) {
  for (std::size_t p = 0; p < values.size(); ++p) matrix[row][p] += values[p];
}

Case sum_up(int ranks, std::vector<Operation> operations) {
  const auto n = static_cast<std::size_t>(ranks);
  Case all{ranks, std::move(operations), Matrix(n, std::vector<double>(n)), Matrix(n, std::vector<double>(n))};
  for (const Operation& op : all.operations) {
    for (std::size_t q = 0; q < n; ++q) {
      if (!op.trace[q]) continue;
      const Attribution parts = attribute(*op.trace[q]);
      std::vector<double> open(n), close(n);
      for (std::size_t p = 0; p < n; ++p) open[p] = us(parts.blame[p]);
      blame_for_close(parts, close);
      add(all.waits, q, open);
      add(all.closings, q, close);
    }
  }
  return all;
}

void fill(Operation& op, const Traces& traces, const Before& before, const std::set<int>& own) {
  const auto n = static_cast<std::size_t>(traces.ranks);
  op.of.resize(n);
  for (const RankTrace& rank : traces.of) {
    const auto q = static_cast<std::size_t>(rank.rank);
    const OperationTrace& mine = *op.trace[q];
    const Attribution parts = attribute(mine);
    std::vector<double> close(n);
    blame_for_close(parts, close);
    for (std::size_t p = 0; p < n; ++p) {
      op.of[p].blamed += us(parts.blame[p]);
      op.of[p].blamed_close += close[p];
    }
    fill_own(op.of[q], mine, parts);
    op.of[q].copying_move = copying(rank.copies, mine.move_begin_ns, mine.move_end_ns);
    const auto earlier = before.find(&mine);
    if (earlier != before.end()) fill_since(op.of[q], mine, *earlier->second, rank, own.contains(rank.rank));
  }
  fill_load(op);
  fill_late(op);
}

}  // namespace

double median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return unknown;
  const std::size_t middle = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Case make_case(const Traces& traces) {
  std::vector<Operation> operations = match(traces);
  const Before before = befores(traces);
  const std::set<int> own = with_own_process(traces);
  for (Operation& op : operations) fill(op, traces, before, own);
  const auto began = [](const Operation& op) {
    std::int64_t first = 0;
    for (const OperationTrace* trace : op.trace) first = trace && (first == 0 || trace->begun_ns < first) ? trace->begun_ns : first;
    return std::tuple(first, op.channel, op.number);
  };
  std::sort(operations.begin(), operations.end(), [&](const Operation& a, const Operation& b) { return began(a) < began(b); });
  return sum_up(traces.ranks, std::move(operations));
}

Case only(const Case& all, bool combine) {
  std::vector<Operation> kept;
  for (const Operation& op : all.operations) {
    if (op.combine == combine) kept.push_back(op);
  }
  return sum_up(all.ranks, std::move(kept));
}

}  // namespace sluice::doctor
