#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace sluice::cli {

// The smallest value that at least `share` of all do not exceed; 0 of none.
inline double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto at = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[at == 0 ? 0 : at - 1];
}

}  // namespace sluice::cli
