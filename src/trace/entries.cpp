#include "trace/entries.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <tuple>

#include <sluice/limits.h>

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
  if (version <= 0 || version / 2 > most_rows) return {};
  const auto word = [&](TraceWord at) { return at_most(load(words[static_cast<std::size_t>(at)]), most_rows); };
  const auto time = [&](TraceWord at) { return at_most(load(words[static_cast<std::size_t>(at)]), most_ns); };
  OperationTrace op;
  op.combine = word(TraceWord::kind) == static_cast<std::int64_t>(core::OperationKind::combine);
  op.channel = channel;
  op.operation = version / 2;
  const bool ended = version % 2 != 0;
  using Outcome = OperationTrace::Outcome;
  const auto outcome = word(TraceWord::outcome);
  if (ended && outcome > static_cast<std::int64_t>(Outcome::failed)) return {};
  op.outcome = ended ? static_cast<Outcome>(outcome) : Outcome::running;
  op.tokens = word(TraceWord::tokens);
  op.rows = word(TraceWord::rows);
  op.row_bytes = at_most(word(TraceWord::row_bytes), limits::row_bytes + limits::scale_bytes);
  op.num_sms = static_cast<int>(word(TraceWord::num_sms) % (limits::num_sms + 1));
  op.called_ns = time(TraceWord::called);
  op.thread_cpu_ns = time(TraceWord::thread_cpu);
  op.process_cpu_ns = time(TraceWord::process_cpu);
  op.begun_ns = time(TraceWord::begun);
  op.data_ns = time(TraceWord::data_there);
  op.move_begin_ns = time(TraceWord::move_begin);
  op.move_end_ns = time(TraceWord::close_sent);
  op.end_ns = time(TraceWord::end);
  const std::int64_t* const peers = words + static_cast<std::size_t>(TraceWord::count);
  const auto column = [&](TracePeer which, std::int64_t most) {
    std::vector<std::int64_t> values;
    for (std::int64_t r = 0; r < ring.ranks; ++r) {
      const std::int64_t at = r * static_cast<std::int64_t>(TracePeer::count) + static_cast<std::int64_t>(which);
      values.push_back(at_most(load(peers[at]), most));
    }
    return values;
  };
  op.arrived_ns = column(TracePeer::arrived, most_ns);
  op.closed_ns = column(TracePeer::closed, most_ns);
  op.rows_with = column(TracePeer::rows, most_rows);
  op.ready_ns = time(TraceWord::ready);
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
