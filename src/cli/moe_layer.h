// The mixture-of-experts layer of the demo: seeded router, gate and experts, computed token by token in
// FP32 where the tokens are, and once more densely in FP64 to compare with.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/decisions.h"

namespace sluice::cli {

struct LayerShape {
  int experts = 256;
  int topk = 8;
  int hidden = 256;
  int inner = 64;  // of each expert's feed-forward
  std::uint64_t seed = 1;
};

// Hidden states of tokens [first, first + count) of the whole batch, bf16 bits [count, hidden], N(0, 1).
std::vector<std::uint16_t> make_tokens(const LayerShape& shape, std::int64_t first, std::int64_t count);

// Router logits and the gate's choice for these tokens.
class Router {
 public:
  explicit Router(const LayerShape& shape);
  Decisions route(const std::vector<std::uint16_t>& tokens) const;

 private:
  LayerShape shape_;
  std::vector<float> weights_;  // [hidden, experts]
};

// One expert: down(silu(gate x) * (up x)).
class Expert {
 public:
  Expert(const LayerShape& shape, int id);

  // One row of bf16 in, one out; FP32 inside.
  void forward(const std::uint16_t* in, std::uint16_t* out) const;

  // The same in FP64, not rounded. `error` [hidden]: a bound of what forward() may differ by, its
  // rounding to bf16 left out.
  void exact(const std::uint16_t* in, double* out, double* error) const;

 private:
  int hidden_;
  int inner_;
  std::vector<float> gate_;        // [hidden, inner]
  std::vector<float> up_;          // [hidden, inner]
  std::vector<float> down_;        // [inner, hidden]
  std::vector<double> gate_norm_;  // [inner]: length of each column
  std::vector<double> up_norm_;
};

// How far the layer's output is from the exact one.
struct Comparison {
  bool ok = true;
  std::int64_t wrong = 0;  // elements beyond their tolerance, not-a-numbers among them
  std::int64_t overflowed = 0;  // not finite, and rightly so: see below
  // Of the element with the largest error; when elements are wrong, of the worst of those.
  double max_error = 0;
  double tolerance = 0;
};

// Computes the layer densely in FP64 for all tokens and compares `outputs` (bf16 bits [tokens, hidden]).
// `first_expert` [ranks + 1] is used for the tolerance only, which per element is promise V3's, n rows:
//
//   u |exact| + (n + 2) 2^-24 sum |w y| + u sum over ranks |partial sum| + 2^-134,  u = 2^-8
//
// and, because the rows y that combine gets are themselves computed in FP32 and rounded to bf16,
//
//   + sum |w| (u |y| + e),  e bounding an expert's FP32 rounding errors: (terms added + 16) 2^-24 times
//   the sum of the absolute values.
//
// An element that is not finite is right where sum |w y| and its tolerance together leave the range of bf16:
// then partial sums may overflow, to infinities of either sign.
Comparison compare_with_dense(const LayerShape& shape, const std::vector<int>& first_expert,
                              const std::vector<std::uint16_t>& tokens, const Decisions& decisions,
                              const std::vector<std::uint16_t>& outputs);

}  // namespace sluice::cli
