// One job for all ranks, made from a seed before any rank starts: who brings which tokens, where they
// want to go, and how the call is made. Every rank knows everything, so each can say what it must get.
#pragma once

#include <sluice/sluice.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "numbers.h"

namespace conformance {

using sluice::Checks;
using sluice::Counts;
using sluice::Layout;
using sluice::OnOverflow;
using sluice::Quantise;
using sluice::ScaleLayout;

using Bytes = std::vector<std::byte>;

inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

inline constexpr Layout layouts[] = {Layout::packed, Layout::grouped, Layout::padded};

enum class Routing {
  uniform,     // K different experts
  one_expert,  // everything to the last expert (K = 1 or duplicates are -1)
  one_set,     // everything to the same K experts
  one_rank,    // experts of rank 0 only
  log_normal,  // some experts are far more popular
  ten_random,  // the first ten tokens random, the rest alike
  nowhere,     // all -1
};

// What all ranks agree on.
struct Call {
  int topk = 4;
  std::int64_t hidden = 64;
  DataType dtype = DataType::bf16;
  DataType id_type = DataType::int32;
  Layout layout = Layout::packed;
  Counts counts = Counts::exact;
  std::int64_t capacity = 0;
  std::int64_t alignment = 1;
  OnOverflow on_overflow = OnOverflow::error;
  Quantise quantise = Quantise::none;
  ScaleLayout scale_layout = ScaleLayout::row;
  std::int64_t scales = 0;  // elements per row, 0 = none
  DataType scale_type = DataType::fp32;
  bool weights = true;
  bool mask = false;  // a rank mask instead of ids
  bool zero_padding = false;
  Checks checks = Checks::by_default;
  int channel = 0;
};

struct Recipe {
  std::uint64_t seed = 1;
  int ranks = 1;
  int experts = 8;
  std::vector<int> first;            // empty = even split
  std::vector<std::int64_t> tokens;  // of rank r: tokens[r % size]
  std::int64_t max_tokens = 0;       // 0 = the most of `tokens`
  Routing routing = Routing::uniform;
  double missing = 0;  // chance that a choice is -1
  double twice = 0;    // chance that a choice repeats the one before
  double outside = 0;  // chance that a choice is no expert (unchecked calls)
  Fill fill = Fill::noise;
  Call call;
};

struct Input {  // of one rank
  std::int64_t tokens = 0;
  std::vector<std::int64_t> ids;   // [T, K]
  std::vector<float> weights;      // [T, K]
  std::vector<std::uint8_t> mask;  // [T, R]
  Bytes rows;                      // [T, row_bytes]
  Bytes scales;                    // [T, scale_bytes]
  // What the destinations must see: the same, or quantised.
  Bytes sent_rows;
  Bytes sent_scales;
};

struct Problem {
  std::uint64_t seed = 1;
  int ranks = 1;
  int experts = 8;
  std::vector<int> first;  // [R + 1]
  bool even_split = true;
  std::int64_t max_tokens = 0;
  Call call;
  std::vector<Input> inputs;

  int local_experts(int rank) const {
    return first[static_cast<std::size_t>(rank) + 1] - first[static_cast<std::size_t>(rank)];
  }
  // The rank that owns an expert, -1 for what is none.
  int owner(std::int64_t expert) const;
  std::int64_t row_bytes() const { return call.hidden * sluice::size_of(call.dtype); }
  std::int64_t sent_row_bytes() const { return call.quantise == Quantise::none ? row_bytes() : call.hidden; }
  std::int64_t scale_bytes() const { return call.scales * sluice::size_of(call.scale_type); }
  std::int64_t sent_scale_bytes() const;
};

// Four experts on each rank, and some tokens.
Recipe small_recipe(int ranks, std::uint64_t seed = 1);

Problem make_problem(const Recipe& recipe);

// New rows, scales and weights, the same decisions.
void refill(Problem& problem, std::uint64_t seed, Fill fill);

// One line that says it all.
std::string describe(const Problem& problem);

// Options of a communicator that can do it.
sluice::CommunicatorOptions options_for(const Problem& problem, const std::string& engine);

// One row quantised as V4 says. `out` takes `n` bytes; `scales` ceil(n / 128) floats, or as many exponent
// bytes padded with zeros to a multiple of four.
void quantise(const void* row, DataType type, std::int64_t n, Quantise form, std::byte* out,
              std::byte* scales);

}  // namespace conformance
