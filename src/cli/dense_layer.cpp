// compare_with_dense of moe_layer.h.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <thread>
#include <vector>

#include "cli/moe_layer.h"
#include "cli/numbers.h"

namespace sluice::cli {
namespace {

constexpr double bf16_unit = 0x1p-8;  // as promise V3 counts
constexpr double bf16_infinite = 0x1.FFp127;  // from here on rounding to bf16 gives infinity
constexpr std::int64_t block_size = 1024;

struct Batch {
  const LayerShape& shape;
  const std::vector<int>& first_expert;
  const std::vector<std::uint16_t>& tokens;
  const Decisions& decisions;
  const std::vector<std::uint16_t>& outputs;
};

// Sums of one block of tokens, each [tokens of the block, hidden].
struct Sums {
  explicit Sums(std::size_t n) : exact(n), absolute(n), partial(n), partials(n), rows_error(n) {}
  std::vector<double> exact, absolute, partial, partials, rows_error;
};

// Choices of a block by expert: (token in the block, weight).
using ByExpert = std::vector<std::vector<std::pair<std::int64_t, float>>>;

ByExpert choices_by_expert(const Batch& batch, std::int64_t first, std::int64_t count) {
  ByExpert chosen(static_cast<std::size_t>(batch.shape.experts));
  const int topk = batch.decisions.topk;
  for (std::int64_t t = 0; t < count; ++t) {
    for (int j = 0; j < topk; ++j) {
      const auto at = static_cast<std::size_t>((first + t) * topk + j);
      if (batch.decisions.ids[at] >= 0)
        chosen[batch.decisions.ids[at]].emplace_back(t, batch.decisions.weights[at]);
    }
  }
  return chosen;
}

void add_expert(const Batch& batch, int id, std::int64_t first, const ByExpert& chosen, Sums& sums) {
  const auto hidden = static_cast<std::size_t>(batch.shape.hidden);
  const Expert expert(batch.shape, id);
  std::vector<double> y(hidden);
  std::vector<double> error(hidden);
  for (const auto& [token, weight] : chosen[id]) {
    expert.exact(batch.tokens.data() + static_cast<std::size_t>(first + token) * hidden, y.data(),
                 error.data());
    const double w = static_cast<double>(weight);
    const std::size_t at = static_cast<std::size_t>(token) * hidden;
    for (std::size_t h = 0; h < hidden; ++h) {
      sums.exact[at + h] += w * y[h];
      sums.partial[at + h] += w * y[h];
      sums.absolute[at + h] += std::fabs(w * y[h]);
      sums.rows_error[at + h] += std::fabs(w) * (bf16_unit * std::fabs(y[h]) + error[h]);
    }
  }
}

// The experts of one rank have been added: their sum is rounded there.
void close_rank(Sums& sums) {
  for (std::size_t i = 0; i < sums.partial.size(); ++i) {
    sums.partials[i] += std::fabs(sums.partial[i]);
    sums.partial[i] = 0;
  }
}

void merge(Comparison& into, double error, double tolerance) {
  const bool wrong = !(error <= tolerance);
  const bool first_wrong = wrong && into.ok;
  const double ratio = error / tolerance;
  if (wrong) {
    into.ok = false;
    ++into.wrong;
  }
  const bool worse = into.ok ? error > into.max_error : wrong && !(ratio <= into.max_error / into.tolerance);
  if (first_wrong || worse) {
    into.max_error = std::isnan(error) ? HUGE_VAL : error;
    into.tolerance = tolerance;
  }
}

void merge(Comparison& into, const Comparison& part) {
  into.overflowed += part.overflowed;
  if (!part.ok) into.wrong += part.wrong - 1;  // the one that merge counts
  if (part.tolerance > 0) merge(into, part.max_error, part.tolerance);
}

Comparison compare_block(const Batch& batch, std::int64_t first, std::int64_t count) {
  const auto hidden = static_cast<std::size_t>(batch.shape.hidden);
  Sums sums(static_cast<std::size_t>(count) * hidden);
  const auto chosen = choices_by_expert(batch, first, count);
  for (std::size_t r = 0; r + 1 < batch.first_expert.size(); ++r) {
    for (int e = batch.first_expert[r]; e < batch.first_expert[r + 1]; ++e) {
      if (!chosen[e].empty()) add_expert(batch, e, first, chosen, sums);
    }
    close_rank(sums);
  }
  Comparison result;
  const double n = batch.decisions.topk;
  for (std::size_t i = 0; i < sums.exact.size(); ++i) {
    const double got =
        static_cast<double>(from_bf16(batch.outputs[static_cast<std::size_t>(first) * hidden + i]));
    const double tolerance = bf16_unit * std::fabs(sums.exact[i]) + (n + 2) * 0x1p-24 * sums.absolute[i] +
                             bf16_unit * sums.partials[i] + 0x1p-134 + sums.rows_error[i];
    if (!std::isfinite(got) && sums.absolute[i] + tolerance >= bf16_infinite) {
      ++result.overflowed;
      continue;
    }
    merge(result, std::fabs(got - sums.exact[i]), tolerance);
  }
  return result;
}

}  // namespace

Comparison compare_with_dense(const LayerShape& shape, const std::vector<int>& first_expert,
                              const std::vector<std::uint16_t>& tokens, const Decisions& decisions,
                              const std::vector<std::uint16_t>& outputs) {
  const Batch batch{shape, first_expert, tokens, decisions, outputs};
  const std::int64_t count = decisions.tokens();
  Comparison result;
  if (outputs.size() != tokens.size()) {
    result.ok = false;
    return result;
  }
  std::mutex mutex;
  std::int64_t next = 0;
  const auto work = [&] {
    for (;;) {
      std::unique_lock lock(mutex);
      const std::int64_t first = next;
      if (first >= count) return;
      next += block_size;
      lock.unlock();
      const Comparison part = compare_block(batch, first, std::min(block_size, count - first));
      lock.lock();
      merge(result, part);
    }
  };
  std::vector<std::jthread> helpers;
  const auto cores =
      std::min<std::int64_t>(std::thread::hardware_concurrency(), (count + block_size - 1) / block_size);
  for (std::int64_t i = 1; i < cores; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  return result;
}

}  // namespace sluice::cli
