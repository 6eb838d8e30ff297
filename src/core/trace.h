// What a traced operation leaves behind: one entry of words in its rank's ring, written by whoever runs the script.
#pragma once

#include <cstdint>

namespace sluice::core {

// The words of an entry; times in nanoseconds of the engine's clock, 0 = not reached. Behind them, for each rank, the
// words of TracePeer.
enum class TraceWord : std::uint32_t {
  version,  // 2n while operation n of the channel runs, 2n + 1 when it has ended; 0: unused. Written first and last
  kind, outcome, tokens, rows, row_bytes, num_sms,
  called, thread_cpu, process_cpu,
  begun, ready, data_there, move_begin, close_sent, end,
  count
};
enum class TracePeer : std::uint32_t { arrived, closed, rows, count };

// The entries of a communicator's channels, each channel's `slots` in turn. The struct is copied into reports.
struct TraceRing {
  std::int64_t* words = nullptr;  // null: nothing is traced
  std::int64_t slots = 0;         // of a channel
  std::int32_t ranks = 1;
  std::int32_t channels = 1;

  std::int64_t entry_words() const {
    return static_cast<std::int64_t>(TraceWord::count) + static_cast<std::int64_t>(TracePeer::count) * ranks;
  }
  std::int64_t* entry(int channel, std::int64_t operation) const {
    return words + (channel * slots + operation % slots) * entry_words();
  }
  std::int64_t total_words() const { return channels * slots * entry_words(); }
};

// What the host knows of an operation when it is called.
struct TraceCall {
  TraceRing ring;
  std::int32_t channel = 0;
  std::int64_t tokens = 0;
  std::int64_t row_bytes = 0;
  std::int64_t called_ns = 0;
  std::int64_t thread_cpu_ns = 0;
  std::int64_t process_cpu_ns = 0;
};

// Now, with 0 tokens; nothing, and no time spent, where nothing is traced.
TraceCall trace_call(const TraceRing& ring, int channel);

}  // namespace sluice::core
