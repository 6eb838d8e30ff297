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
inline constexpr std::int64_t alignment = 1 << 20;     // rows
inline constexpr int num_sms = 1024;
inline constexpr int workers = 1024;
inline constexpr int deadline_ms = 1 << 30;
inline constexpr int trace_operations = 1 << 20;       // kept per channel
// Far more than memory holds, and products of a shape, a stride and a size stay far from 2^63.
inline constexpr std::int64_t elements = std::int64_t{1} << 40;  // in a dimension or stride of a tensor
inline constexpr std::int64_t arena_bytes = std::int64_t{1} << 46;

}  // namespace sluice::limits
