// The choices of a call and of a communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sluice/tensor.h>

namespace sluice {

// Where rows lie at the destination. See docs/concepts.md.
enum class Layout : std::uint8_t {
  packed,   // [N, H], one row per (token, rank), ordered by (source rank, token)
  grouped,  // [M, H], one row per (token, local expert), experts contiguous, each start aligned
  padded,   // [local experts, capacity, H]
};

// "packed", "grouped" or "padded".
constexpr const char* name_of(Layout layout) noexcept {
  constexpr const char* names[] = {"packed", "grouped", "padded"};
  return static_cast<int>(layout) < 3 ? names[static_cast<int>(layout)] : "unknown";
}

// Who learns how many rows came.
enum class Counts : std::uint8_t {
  exact,    // the call waits for the counts (not for the rows) and the result has just that many rows
  bounded,  // no host wait: the result has `capacity` rows, the counts stay on the device
};

enum class OnOverflow : std::uint8_t {
  error,  // CapacityError on every rank before any row moves
  drop,   // rows at positions >= capacity (in the layout's order) are left out and counted
};

// Quantising bf16, fp16 or fp32 rows to e4m3 on the way, per token and group of 128 elements (the last may be
// shorter), as DeepSeek-V3 does and the casts of DeepEP (use_fp8, with round_scale and use_ue8m0). a = max(largest
// finite |x|, 1e-4).
enum class Quantise : std::uint8_t {
  none,
  e4m3,               // scale = a / 448 as FP32, q = e4m3(x * (448 / a))
  // scale = 2^ceil(log2(a / 448)), one exponent byte (bias 127) each, row padded with zeros to a multiple of 4 bytes;
  // q = e4m3(x / scale)
  e4m3_power_of_two,
};

enum class ScaleLayout : std::uint8_t {
  row,     // [rows, S]
  // Packed and grouped: shape [rows, S], strides [1, ld]. Padded: [local experts, C, S], strides [C, 1, ld]. ld is the
  // call's capacity (padded: local experts * C), rounded up so that a column is a multiple of 16 bytes. With
  // Counts::exact and no capacity it follows from what the arena has free: read it from `strides`.
  column,
};

// How bytes move. There is no choice yet.
enum class Method : std::uint8_t { automatic };

// Which queue runs the operation.
enum class RunOn : std::uint8_t {
  own_lane,       // the channel's own; the operation runs in the background
  callers_stream  // the stream of the call; the CPU engine treats it as own_lane
};

enum class Checks : std::uint8_t {
  by_default,  // as the communicator was made
  on,          // an id out of range, or the same expert twice in a token, is an error
  off,         // out of range is dropped; twice is passed on (packed) or one row with both weights
};

enum class LogLevel : std::uint8_t { info, warning };

// What a communicator is made for. All ranks give the same values, or creation fails with both values
// named (`workers`, `log` and what is traced may differ).
struct CommunicatorOptions {
  // "cpu", "cuda", or "" for "cpu", whose calls take any memory.
  std::string engine{};

  // The shape that the arena is sized for. `max_tokens`, `experts` and the split are limits of every
  // call; the others only size the arena, so other shapes work as long as they fit.
  std::int64_t max_tokens = 4096;      // of one rank in one call
  int experts = 256;                   // in all
  std::int64_t hidden = 7168;          // elements per row
  int topk = 8;                        // 0: sized for dispatches by rank_mask, which bring no ids and weights
  DataType dtype = DataType::bf16;     // of the rows of dispatch: not int32, int64
  Layout layout = Layout::packed;
  std::int64_t alignment = 1;          // grouped: rows to which each expert's start is aligned
  std::int64_t capacity = 0;           // rows (padded: per expert) of one result; 0 = the upper bound

  // Experts of rank r are [first_expert[r], first_expert[r + 1]); size ranks + 1. Empty: an even
  // split, which requires experts % ranks == 0.
  std::vector<int> first_expert{};

  // Independent sequences of operations, numbered from 0.
  int channels = 2;

  // Bytes of the arena; 0 = from the shape above (`sluice info --size` prints the terms).
  std::int64_t arena_bytes = 0;

  // How long a lane waits for a peer, milliseconds; 0 = without end. Changed later by set_deadline_ms.
  int deadline_ms = 100'000;

  // Id checks of calls that do not say: on for the CPU engine, off for CUDA, or what SLUICE_CHECK (0 or
  // 1) says when the communicator is made.
  Checks checks = Checks::by_default;

  // CPU engine: threads that serve a lane, the lane's own included; 0 = cores of this process divided
  // by the ranks of the node, at least 1.
  int workers = 0;

  // Tracing (docs/waiting.md): of how many operations per channel, the last ones, time stamps are kept, for
  // Communicator::trace(). 0: none, or 4096 where a folder is named. CPU engine alone in this version.
  int trace_operations = 0;
  // A folder, made if it is not there, in which this rank writes them to a file, to be read by read_trace(), `sluice trace`
  // and `sluice doctor`, also after a crash. Its size does not change: channels * trace_operations * (128 + 24 * ranks)
  // bytes and 132 KiB. "": the folder of SLUICE_TRACE, if that is set when the communicator is made, else no file.
  std::string trace_dir{};

  // Called in the thread that calls the library: info when the communicator is made and when a call of this rank is
  // refused for its own fault (bad ids of a bounded call: by the next call, if nobody waited for their event), warning
  // when a call meets a failed channel; empty = silence. What it throws comes out of the call; out of the creation on
  // this rank, and the peers get PeerError with its text.
  std::function<void(LogLevel, const std::string&)> log{};
  LogLevel log_level = LogLevel::warning;
};

}  // namespace sluice
