#include "cli/decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/common_flags.h"

namespace sluice::cli {

std::vector<int> split_experts(int experts, int ranks) {
  std::vector<int> first(static_cast<std::size_t>(ranks) + 1, 0);
  for (int r = 0; r < ranks; ++r) {
    first[r + 1] = first[r] + experts / ranks + (r < experts % ranks ? 1 : 0);
  }
  return first;
}

std::vector<int> owners(const std::vector<int>& first_expert) {
  std::vector<int> owner(static_cast<std::size_t>(first_expert.back()), 0);
  for (std::size_t r = 0; r + 1 < first_expert.size(); ++r) {
    std::fill(owner.begin() + first_expert[r], owner.begin() + first_expert[r + 1], static_cast<int>(r));
  }
  return owner;
}

int experts_used(const Decisions& decisions) {
  if (decisions.ids.empty()) return 0;
  return *std::max_element(decisions.ids.begin(), decisions.ids.end()) + 1;
}

RecordedShape shape_of_recorded(const Decisions& recorded, const std::string& path, int experts, int topk) {
  const int used = experts_used(recorded);
  if (experts > 0 && experts < used)
    throw UsageError(fmt::format("--experts {}, but {} uses expert {}", experts, path, used - 1));
  if (topk > 0 && topk != recorded.topk)
    throw UsageError(fmt::format("--topk {}, but {} has {} experts per token", topk, path, recorded.topk));
  // More columns than experts are fine: where a line has -1, its token has no expert.
  return {experts > 0 ? experts : std::max(1, used), recorded.topk};
}

void require_enough_experts(int experts, int topk) {
  if (topk <= experts) return;
  throw UsageError(fmt::format("--topk {} of --experts {}: a token cannot choose more experts than there are",
                               topk, experts));
}

Decisions slice(const Decisions& all, std::int64_t first, std::int64_t count) {
  Decisions part;
  part.topk = all.topk;
  const std::int64_t tokens = all.tokens();
  if (tokens == 0) return part;
  const auto k = static_cast<std::size_t>(all.topk);
  part.ids.reserve(static_cast<std::size_t>(count) * k);
  part.weights.reserve(static_cast<std::size_t>(count) * k);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::ptrdiff_t>(static_cast<std::size_t>((first + i) % tokens) * k);
    part.ids.insert(part.ids.end(), all.ids.begin() + at, all.ids.begin() + at + all.topk);
    part.weights.insert(part.weights.end(), all.weights.begin() + at, all.weights.begin() + at + all.topk);
  }
  return part;
}

std::vector<std::int64_t> rows_per_rank(const Decisions& decisions, const std::vector<int>& first_expert) {
  const auto owner = owners(first_expert);
  std::vector<std::int64_t> rows(first_expert.size() - 1, 0);
  std::vector<std::int64_t> last_token(rows.size(), -1);
  for (std::size_t i = 0; i < decisions.ids.size(); ++i) {
    if (decisions.ids[i] < 0) continue;
    const int r = owner[decisions.ids[i]];
    const auto token = static_cast<std::int64_t>(i) / decisions.topk;
    if (last_token[r] == token) continue;
    last_token[r] = token;
    ++rows[r];
  }
  return rows;
}

std::vector<std::int64_t> rows_per_expert(const Decisions& decisions, int experts) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(experts), 0);
  for (const std::int32_t id : decisions.ids) {
    if (id >= 0) ++rows[id];
  }
  return rows;
}

Skew skew_of(const std::vector<std::int64_t>& loads) {
  double total = 0;
  std::int64_t most = 0;
  for (const std::int64_t load : loads) {
    total += static_cast<double>(load);
    most = std::max(most, load);
  }
  Skew skew;
  if (total == 0) return skew;
  skew.max_over_mean = static_cast<double>(most) * static_cast<double>(loads.size()) / total;
  for (const std::int64_t load : loads) {
    if (load == 0) continue;
    const double share = static_cast<double>(load) / total;
    skew.entropy_bits -= share * std::log2(share);
  }
  return skew;
}

}  // namespace sluice::cli
