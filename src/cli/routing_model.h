// Seeded, synthetic router decisions of a stated skew.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/decisions.h"

namespace sluice::cli {

struct RoutingModel {
  enum class Kind { uniform, zipf, lognormal, deepseek, olmoe, qwen, mixtral };
  Kind kind = Kind::uniform;
  double skew = 0;  // S of zipf:S and lognormal:S
};

// The names of all, with `skew` in place of S: "uniform", "zipf:S", "lognormal:S", "deepseek", "olmoe",
// "qwen", "mixtral".
std::vector<std::string> routing_model_names(const std::string& skew = "S");

// One of these names, S a number from 0 to 100. False for anything else.
bool parse_routing_model(const std::string& text, RoutingModel& model);

// What is wrong with the S of "zipf:..." or "lognormal:..."; empty for any other text.
std::string wrong_skew(const std::string& text);

// E and K of the real model; 256 and 8 where there is none.
int natural_experts(const RoutingModel& model);
int natural_topk(const RoutingModel& model);

// How often each expert is wanted, relative to the others, [experts].
std::vector<double> popularity(const RoutingModel& model, int experts, std::uint64_t seed);

// Probability that a token chooses each expert, in units of 2^-32: proportional to `popularity`, but at
// most 1; adds up to topk exactly.
std::vector<std::uint64_t> inclusion(const std::vector<double>& popularity, int topk);

// Decisions of `tokens` tokens. `stream` tells the ranks apart: same popularity, other tokens.
Decisions generate(const RoutingModel& model, int experts, int topk, std::int64_t tokens, std::uint64_t seed,
                   std::uint64_t stream = 0);

}  // namespace sluice::cli
