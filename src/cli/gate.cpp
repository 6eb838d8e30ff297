#include "cli/gate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace sluice::cli {
namespace {

// Indices of the `count` largest of `values`, best first, ties to the lower index.
std::vector<int> best_of(const std::vector<float>& values, int count) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](int a, int b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

float group_score(const float* scores, int count) {
  float best = -1;
  float second = -1;
  for (int i = 0; i < count; ++i) {
    if (scores[i] > best) {
      second = std::exchange(best, scores[i]);
    } else {
      second = std::max(second, scores[i]);
    }
  }
  return count > 1 ? best + second : best;
}

}  // namespace

GateShape deepseek_gate(int experts, int topk) {
  GateShape shape{.experts = experts, .topk = topk};
  while (shape.groups > 1) {
    shape.groups_kept = (shape.groups + 1) / 2;
    if (experts % shape.groups == 0 && shape.groups_kept * (experts / shape.groups) >= topk) return shape;
    shape.groups /= 2;
  }
  shape.groups_kept = 1;
  return shape;
}

void choose_experts(const GateShape& shape, const float* logits, std::int32_t* ids, float* weights) {
  std::vector<float> scores(static_cast<std::size_t>(shape.experts));
  for (int e = 0; e < shape.experts; ++e) scores[e] = 1.0F / (1.0F + std::exp(-logits[e]));
  const int group_size = shape.experts / shape.groups;
  std::vector<float> group_scores(static_cast<std::size_t>(shape.groups));
  for (int g = 0; g < shape.groups; ++g)
    group_scores[g] = group_score(scores.data() + g * group_size, group_size);
  std::vector<float> open(scores.size(), -1.0F);
  for (const int g : best_of(group_scores, shape.groups_kept)) {
    std::copy_n(scores.begin() + g * group_size, group_size, open.begin() + g * group_size);
  }
  const auto chosen = best_of(open, shape.topk);
  float sum = 0;
  for (const int e : chosen) sum += scores[e];
  for (int j = 0; j < shape.topk; ++j) {
    ids[j] = chosen[j];
    weights[j] = sum > 0 ? scores[chosen[j]] / sum * shape.scaling : 0.0F;
  }
}

}  // namespace sluice::cli
