#include "trace/entries.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <tuple>

#include "core/status.h"

namespace sluice::trace {

namespace {

using core::TracePeer;
using core::TraceWord;

std::int64_t load(const std::int64_t& word, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref(const_cast<std::int64_t&>(word)).load(order);
}

// As its writer does: version before, words, version after.
std::optional<OperationTrace> read_entry(const core::TraceRing& ring, int channel, std::int64_t slot) {
  const std::int64_t* const words = ring.entry(channel, slot);
  const std::int64_t version = load(words[0], std::memory_order_acquire);
  if (version <= 0) return {};
  const auto word = [&](TraceWord at) { return load(words[static_cast<std::size_t>(at)]); };
  OperationTrace op;
  op.combine = word(TraceWord::kind) == static_cast<std::int64_t>(core::OperationKind::combine);
  op.channel = channel;
  op.operation = version / 2;
  const bool ended = version % 2 != 0;
  op.outcome = ended ? static_cast<OperationTrace::Outcome>(word(TraceWord::outcome)) : OperationTrace::Outcome::running;
  op.tokens = word(TraceWord::tokens);
  op.rows = word(TraceWord::rows);
  op.row_bytes = word(TraceWord::row_bytes);
  op.num_sms = static_cast<int>(word(TraceWord::num_sms));
  op.called_ns = word(TraceWord::called);
  op.thread_cpu_ns = word(TraceWord::thread_cpu);
  op.process_cpu_ns = word(TraceWord::process_cpu);
  op.begun_ns = word(TraceWord::begun);
  op.data_ns = word(TraceWord::data_there);
  op.move_begin_ns = word(TraceWord::move_begin);
  op.move_end_ns = word(TraceWord::close_sent);
  op.end_ns = word(TraceWord::end);
  const std::int64_t* const peers = words + static_cast<std::size_t>(TraceWord::count);
  const auto column = [&](TracePeer which) {
    std::vector<std::int64_t> values;
    for (std::int64_t r = 0; r < ring.ranks; ++r) {
      values.push_back(load(peers[r * static_cast<std::int64_t>(TracePeer::count) + static_cast<std::int64_t>(which)]));
    }
    return values;
  };
  op.arrived_ns = column(TracePeer::arrived);
  op.closed_ns = column(TracePeer::closed);
  op.rows_with = column(TracePeer::rows);
  op.ready_ns = word(TraceWord::ready);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (load(words[0]) != version) return {};
  return op;
}

}  // namespace

std::vector<OperationTrace> read_ring(const core::TraceRing& ring, std::int64_t* lost) {
  std::vector<OperationTrace> all;
  for (int channel = 0; channel < ring.channels; ++channel) {
    std::int64_t first = 0, count = 0;
    for (std::int64_t slot = 0; slot < ring.slots; ++slot) {
      auto op = read_entry(ring, channel, slot);
      if (!op || op->operation % ring.slots != slot) continue;
      first = count == 0 ? op->operation : std::min(first, op->operation);
      ++count;
      all.push_back(std::move(*op));
    }
    if (lost && count > 0) *lost += first - 1;
  }
  const auto order = [](const OperationTrace& a, const OperationTrace& b) {
    return std::tuple(a.called_ns, a.channel, a.operation) < std::tuple(b.called_ns, b.channel, b.operation);
  };
  std::sort(all.begin(), all.end(), order);
  return all;
}

}  // namespace sluice::trace
