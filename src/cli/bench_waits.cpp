#include "cli/bench_waits.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/percentile.h"

namespace sluice::cli {
namespace {

constexpr std::size_t most_columns = 16;

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1000; }

}  // namespace

Waits waits_of(const std::vector<OperationTrace>& trace, int iterations) {
  Waits waits;
  std::vector<std::vector<double>> blame;  // per rank and iteration
  const auto first = trace.size() - std::min(trace.size(), static_cast<std::size_t>(iterations));
  for (std::size_t i = first; i < trace.size(); ++i) {
    const Attribution parts = attribute(trace[i]);
    waits.wait_us.push_back(microseconds(parts.wait));
    waits.move_us.push_back(microseconds(parts.move));
    blame.resize(parts.blame.size());
    for (std::size_t r = 0; r < parts.blame.size(); ++r) blame[r].push_back(microseconds(parts.blame[r]));
  }
  for (const auto& each : blame) waits.wait_for_us.push_back(percentile(each, 0.5));
  return waits;
}

void print_waits(const Json& record) {
  fmt::print("  {}in the median iteration the longest wait was {:.1f} us, the longest move {:.1f} us\n",
             record["late"].is_null() ? "" : fmt::format("late: {}; ", record["late"].get<std::string>()),
             record["wait_us"].get<double>(), record["move_us"].get<double>());
  const Json& rows = record["wait_for"];
  if (rows.size() > most_columns) {
    fmt::print("  who waited for whom: {} x {} numbers, which --json has\n", rows.size(), rows.size());
    return;
  }
  fmt::print("  a rank (down) waited for a rank (across), median us:\n       ");
  for (std::size_t r = 0; r < rows.size(); ++r) fmt::print("{:>9}", fmt::format("r{}", r));
  fmt::print("\n");
  for (std::size_t r = 0; r < rows.size(); ++r) {
    fmt::print("{:>7}", fmt::format("r{}", r));
    for (const Json& us : rows[r]) fmt::print("{:>9.1f}", us.get<double>());
    fmt::print("\n");
  }
}

}  // namespace sluice::cli
