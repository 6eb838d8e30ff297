// A router's gate in the manner of DeepSeek-V3: sigmoid scores, a few groups of experts kept, the best
// experts of those. (Without its correction bias, which only a trained router has.)
#pragma once

#include <cstdint>

namespace sluice::cli {

struct GateShape {
  int experts = 256;
  int topk = 8;
  int groups = 8;
  int groups_kept = 4;
  float scaling = 2.5F;  // of the weights, which add up to it
};

// 8 groups of which 4 are kept, or the nearest that this number of experts allows.
GateShape deepseek_gate(int experts, int topk);

// Chooses for one token: `logits` [experts], `ids` and `weights` [topk], best first. A group counts as
// much as its two best scores together. Ties go to the lower id.
void choose_experts(const GateShape& shape, const float* logits, std::int32_t* ids, float* weights);

}  // namespace sluice::cli
