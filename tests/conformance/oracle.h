// What every rank must get, computed densely and by brute force from the definitions alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "problem.h"

namespace conformance {

// One row that belongs to a rank: of packed layout one per (token, rank), else one per (token, expert).
struct Arrival {
  int source = 0;
  std::int64_t token = 0;
  int local_expert = -1;  // -1 in packed layout
  std::int64_t row = 0;   // in the result; padded: within the expert
  bool dropped = false;   // past the capacity
};

// All rows of one rank, in the order of the layout.
struct Arrivals {
  std::vector<Arrival> list;
  std::vector<std::int64_t> per_expert;  // [local experts], dropped rows not counted
  std::vector<std::int64_t> chosen;      // [local experts], packed: dropped rows counted too
  std::vector<std::int64_t> per_source;  // [R], (token, rank) pairs
  std::int64_t end = 0;                  // packed: rows; grouped: rows with padding, both before the drop
  std::int64_t dropped = 0;
};

Arrivals arrivals_at(const Problem& problem, int rank);
std::vector<Arrivals> arrivals_of_all(const Problem& problem);

// A dispatch result as plain host memory, rows tight and row-major whatever the strides were.
struct Image {
  std::int64_t rows = 0;             // N, M, or local experts x per_expert_rows
  std::int64_t per_expert_rows = 0;  // padded: the capacity
  std::int64_t row_bytes = 0;
  std::int64_t scale_bytes = 0;  // 0 = no scales
  Bytes data, scales;
  std::vector<std::int32_t> local_ids;  // empty = not given
  std::vector<float> weights;           // empty = not given
  std::int64_t num_rows = 0, dropped = 0;
  std::vector<std::int64_t> counts, aligned_counts, offsets;
  std::vector<bool> filled;  // expected image only: rows that a token fills
  std::int64_t host_rows = 0;
  std::vector<std::int64_t> host_per_expert, host_per_source;
};

// The image that `rank` must see when the result has `rows` rows (padded: `per_expert_rows` per expert).
Image expected_image(const Problem& problem, const Arrivals& arrivals, int rank, std::int64_t rows,
                     std::int64_t per_expert_rows);

// Sentences, the first few differences; empty when all is well.
using Findings = std::vector<std::string>;
Findings compare(const Problem& problem, const Image& expected, const Image& got);

struct CombineCall {
  DataType type = DataType::bf16;
  std::int64_t hidden = 64;
  bool weights = true;
  bool values = false;
  int biases = 0;
  bool single_rounding = false;
  Fill fill = Fill::tame;
  std::uint64_t seed = 1;
};

// What expert `local_expert` of `rank` made of a token (packed: the rank as a whole, local_expert -1).
void combine_row(const CombineCall& call, int rank, const Arrival& arrival, void* out);
float combine_weight(const CombineCall& call, int rank, const Arrival& arrival);
float combine_value(const CombineCall& call, int rank, const Arrival& arrival, int k);
void bias_row(const CombineCall& call, int rank, std::int64_t token, int which, void* out);

struct Combined {
  Bytes rows;                 // [T, H], by scalar FP32 in the order of V3
  std::vector<double> exact;  // [T, H] in FP64
  std::vector<double> tolerance;
  std::vector<float> values;  // [T, K], empty without values
};

// `all` as arrivals_of_all().
Combined expected_combine(const Problem& problem, const std::vector<Arrivals>& all, const CombineCall& call,
                          int home);

// Bits first, then the bound of V3. Wild rows have bits only: the bound counts one rounding of a subnormal,
// and several small products or local sums make several.
Findings compare(const Combined& expected, const CombineCall& call, const Bytes& rows,
                 const std::vector<float>& values);

}  // namespace conformance
