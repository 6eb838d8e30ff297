// What the demo found, for people and for machines.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/launch.h"
#include "cli/moe_layer.h"

namespace sluice::cli {

struct DemoReport {
  LayerShape shape;
  std::int64_t tokens = 0;  // of the rank with most
  std::int64_t fewest_tokens = 0;
  std::int64_t recorded_tokens = 0;  // of the file, where its decisions serve more than once; else 0
  std::vector<int> first_expert;
  std::string routing;  // file, or empty
  Launch launch = Launch::threads;

  std::vector<std::vector<std::int64_t>> rows;  // [from][to]
  std::vector<std::int64_t> rows_per_expert;
  std::array<double, 4> stage_us{};  // gate, dispatch, experts, combine: the slowest rank's
  bool counts_right = true;          // of rows and rows_per_expert, against the decisions
  Comparison comparison;

  bool ok() const { return counts_right && comparison.ok; }
};

Json demo_record(const DemoReport& report);
void print_demo(const DemoReport& report);

}  // namespace sluice::cli
