// What a router decided for a run of tokens: K experts and K weights each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::cli {

struct Decisions {
  int topk = 0;
  std::vector<std::int32_t> ids;  // [tokens, topk], -1 = no expert
  std::vector<float> weights;     // [tokens, topk]

  std::int64_t tokens() const { return topk == 0 ? 0 : static_cast<std::int64_t>(ids.size()) / topk; }
};

// First expert of each rank, [ranks + 1]: even, the first experts % ranks ranks having one more.
std::vector<int> split_experts(int experts, int ranks);

// Owner of each expert, [experts].
std::vector<int> owners(const std::vector<int>& first_expert);

// Largest id + 1; 0 when no token has an expert.
int experts_used(const Decisions& decisions);

// Experts in all and experts per token of a job that runs `recorded` decisions. The numbers that the user
// gave count, 0 = the file's; throws UsageError where they contradict the file `path`.
struct RecordedShape {
  int experts = 0;
  int topk = 0;
};
RecordedShape shape_of_recorded(const Decisions& recorded, const std::string& path, int experts, int topk);

// Throws UsageError when a token would choose more experts than there are.
void require_enough_experts(int experts, int topk);

// Tokens [first, first + count) of `all`, beginning again at its start when it ends.
Decisions slice(const Decisions& all, std::int64_t first, std::int64_t count);

// Rows that cross to each rank: distinct (token, rank) pairs, [ranks].
std::vector<std::int64_t> rows_per_rank(const Decisions& decisions, const std::vector<int>& first_expert);

// (token, expert) pairs, [experts].
std::vector<std::int64_t> rows_per_expert(const Decisions& decisions, int experts);

// How uneven a load is.
struct Skew {
  double max_over_mean = 0;
  double entropy_bits = 0;
};
Skew skew_of(const std::vector<std::int64_t>& loads);

}  // namespace sluice::cli
