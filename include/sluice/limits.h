// The limits of this version, in one place. `sluice info` prints them.
#pragma once

#include <cstdint>

namespace sluice::limits {

inline constexpr int ranks_per_node = 128;
inline constexpr int ranks = 4096;
inline constexpr int topk = 64;
inline constexpr int experts = 65536;
inline constexpr int channels = 64;
inline constexpr std::int64_t row_bytes = 65536;       // of the rows; scales come on top
inline constexpr std::int64_t row_bytes_multiple = 16;
inline constexpr std::int64_t scale_bytes = 16384;     // per row
inline constexpr std::int64_t scale_bytes_multiple = 4;
inline constexpr std::int64_t max_tokens = 1 << 24;    // of one rank in one call

}  // namespace sluice::limits
