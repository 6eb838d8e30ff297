#include "cli/demo_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice::cli {
namespace {

constexpr std::array<const char*, 4> stages{"gate", "dispatch", "experts", "combine"};
constexpr int bar_width = 40;
constexpr std::size_t expert_lines = 16;

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// Eighths of a character, so that small differences show.
std::string bar(double value, double most) {
  constexpr const char* eighths[] = {"",       "\u258f", "\u258e", "\u258d",
                                     "\u258c", "\u258b", "\u258a", "\u2589"};
  const int units = most > 0 ? static_cast<int>(std::lround(value / most * bar_width * 8)) : 0;
  std::string text;
  for (int i = 0; i < units / 8; ++i) text += "\u2588";
  return text + eighths[units % 8];
}

void print_matrix(const std::vector<std::vector<std::int64_t>>& rows) {
  fmt::print("\nRows sent, from (down) to (across); a token crosses once per rank:\n\n       ");
  for (std::size_t to = 0; to < rows.size(); ++to) fmt::print("{:>8}", fmt::format("r{}", to));
  fmt::print("\n");
  for (std::size_t from = 0; from < rows.size(); ++from) {
    fmt::print("  {:>4} ", fmt::format("r{}", from));
    for (const std::int64_t count : rows[from]) fmt::print("{:>8}", count);
    fmt::print("\n");
  }
}

void print_rank_loads(const DemoReport& report) {
  std::vector<std::int64_t> loads(report.rows.size(), 0);
  for (std::size_t r = 0; r < loads.size(); ++r) {
    const auto begin = report.rows_per_expert.begin();
    loads[r] =
        std::accumulate(begin + report.first_expert[r], begin + report.first_expert[r + 1], std::int64_t{0});
  }
  fmt::print("\nLoad per rank, (token, expert) pairs; fullest {:.2f} x the mean:\n\n",
             skew_of(loads).max_over_mean);
  for (std::size_t r = 0; r < loads.size(); ++r) {
    fmt::print("  {:>4} {:>8}  {}\n", fmt::format("r{}", r), loads[r],
               bar(static_cast<double>(loads[r]), static_cast<double>(largest(loads))));
  }
}

// Few experts: a line each. Many: a line per run of neighbours, as high as its mean.
void print_expert_loads(const std::vector<std::int64_t>& loads) {
  const Skew skew = skew_of(loads);
  const auto busiest = std::max_element(loads.begin(), loads.end());
  fmt::print(
      "\nLoad per expert; busiest is expert {} with {} rows, {:.2f} x the mean; entropy {:.2f} of {:.2f} "
      "bits:\n\n",
      busiest - loads.begin(), *busiest, skew.max_over_mean, skew.entropy_bits,
      std::log2(static_cast<double>(loads.size())));
  const std::size_t step = (loads.size() + expert_lines - 1) / expert_lines;
  std::vector<double> means;
  for (std::size_t e = 0; e < loads.size(); e += step) {
    const std::size_t end = std::min(loads.size(), e + step);
    const auto sum = std::accumulate(loads.begin() + static_cast<std::ptrdiff_t>(e),
                                     loads.begin() + static_cast<std::ptrdiff_t>(end), std::int64_t{0});
    means.push_back(static_cast<double>(sum) / static_cast<double>(end - e));
  }
  const double most = *std::max_element(means.begin(), means.end());
  for (std::size_t i = 0; i < means.size(); ++i) {
    const std::size_t first = i * step;
    const std::size_t last = std::min(loads.size(), first + step) - 1;
    const std::string name = first == last ? fmt::format("e{}", first) : fmt::format("e{}-{}", first, last);
    fmt::print("  {:>9} {:>8.{}f}  {}\n", name, means[i], step == 1 ? 0 : 1, bar(means[i], most));
  }
}

void print_head(const DemoReport& report) {
  const std::string each = report.fewest_tokens == report.tokens
                               ? counted(report.tokens, "token")
                               : fmt::format("{} or {}", report.fewest_tokens, counted(report.tokens, "token"));
  fmt::print("A mixture-of-experts layer: {}, {} each, top-{} of {}, {} elements per token.\n",
             ranks_as(static_cast<int>(report.rows.size()), report.launch), each, report.shape.topk,
             counted(report.shape.experts, "expert"), report.shape.hidden);
  if (report.routing.empty()) {
    fmt::print("Router: sigmoid scores, groups of experts, as DeepSeek-V3.\n");
  } else if (report.recorded_tokens == 0) {
    fmt::print("Router: decisions recorded in {}.\n", report.routing);
  } else {
    fmt::print("Router: decisions recorded in {}, whose {} tokens are fewer: after the last the first follows.\n",
               report.routing, report.recorded_tokens);
  }
}

}  // namespace

Json demo_record(const DemoReport& report) {
  Json record = make_record("demo");
  record["verdict"] = report.ok() ? "ok" : "wrong";
  record["ranks"] = report.rows.size();
  record["tokens"] = report.tokens;
  record["experts"] = report.shape.experts;
  record["topk"] = report.shape.topk;
  record["hidden"] = report.shape.hidden;
  record["rows"] = report.rows;
  record["rows_per_expert"] = report.rows_per_expert;
  for (std::size_t i = 0; i < stages.size(); ++i) record["stage_us"][stages[i]] = report.stage_us[i];
  record["max_error"] =
      std::isfinite(report.comparison.max_error) ? Json(report.comparison.max_error) : Json(nullptr);
  record["tolerance"] = report.comparison.tolerance;
  return record;
}

void print_demo(const DemoReport& report) {
  print_head(report);
  print_matrix(report.rows);
  if (largest(report.rows_per_expert) == 0) {
    fmt::print("\nNo token chose an expert.\n");
  } else {
    print_rank_loads(report);
    print_expert_loads(report.rows_per_expert);
  }
  fmt::print("\nTime of each stage, slowest rank:\n\n");
  const double most = *std::max_element(report.stage_us.begin(), report.stage_us.end());
  const std::size_t first = report.routing.empty() ? 0 : 1;  // recorded decisions need no gate
  for (std::size_t i = first; i < stages.size(); ++i) {
    fmt::print("  {:>9} {:>8.2f} ms  {}\n", stages[i], report.stage_us[i] / 1000,
               bar(report.stage_us[i], most));
  }
  fmt::print("\nLargest error against the dense layer in FP64: {:.3g}, tolerance {:.3g}.\n",
             report.comparison.max_error, report.comparison.tolerance);
  if (!report.counts_right) fmt::print("The rows that arrived are not the rows that the router sent.\n");
  if (report.comparison.overflowed > 0)
    fmt::print("{} values are not finite, as weights so large make them.\n", report.comparison.overflowed);
  if (report.comparison.wrong > 0) fmt::print("{} values are wrong.\n", report.comparison.wrong);
  fmt::print("Verdict: {}.\n", report.ok() ? "ok" : "WRONG");
}

}  // namespace sluice::cli
