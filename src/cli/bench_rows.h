// The rows that the bench sends, and what must come of them: the program's own small oracle.
#pragma once

#include <sluice/combine.h>
#include <sluice/dispatch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench_case.h"

namespace sluice::cli {

// Fills a row with values that `key` fixes: finite, and of a size between 1/8 and 2 (e4m3: below 2).
void fill_row(void* row, DataType type, std::int64_t elements, std::uint64_t key);

// Key of token `token` of rank `source` on its way out.
std::uint64_t sent_key(const BenchCase& bench, int source, std::int64_t token);
// Key of its row on the way home, from rank `place` (packed) or expert `place`.
std::uint64_t home_key(const BenchCase& bench, int source, std::int64_t token, int place);

// Scale of group `group` of a token whose rows travel as e4m3.
inline float sent_scale(std::int64_t token, std::int64_t group) {
  return static_cast<float>(token + 1) + static_cast<float>(group);
}

// Where one row of a dispatch result belongs, and whose it is.
struct Arrival {
  std::int64_t position = 0;
  int source = 0;
  std::int64_t token = 0;
  int place = 0;  // packed: the rank; otherwise the expert
  float weight = 0;
};
// All rows that rank `rank` gets, in the order of its layout. `capacity`: padded, rows per expert.
std::vector<Arrival> arrivals(const BenchCase& bench, int rank, std::int64_t capacity);

// What is wrong with a result on `rank`; empty when nothing is.
std::string check_dispatch(const BenchCase& bench, int rank, const DispatchResult& result);
std::string check_combine(const BenchCase& bench, int rank, const CombineResult& result);

// Fills the rows that a rank gives to combine.
void fill_home_rows(const BenchCase& bench, const std::vector<Arrival>& rows, const TensorView& view);

}  // namespace sluice::cli
