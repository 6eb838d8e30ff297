#include "engine/cpu/tracer.h"

#include <algorithm>
#include <atomic>

#include <sluice/trace.h>

#include "core/agree.h"
#include "engine/wait.h"

namespace sluice::cpu {

using core::OperationKind;
using core::TracePeer;
using core::TraceWord;
using engine::now_ns;

void Tracer::put(TraceWord word, std::int64_t value) {
  if (entry_) std::atomic_ref(entry_[static_cast<std::size_t>(word)]).store(value, std::memory_order_relaxed);
}

void Tracer::put(int peer, TracePeer word, std::int64_t value) {
  const std::int64_t at = static_cast<std::int64_t>(TraceWord::count) + peer * static_cast<std::int64_t>(TracePeer::count);
  if (entry_) std::atomic_ref(entry_[at + static_cast<std::int64_t>(word)]).store(value, std::memory_order_relaxed);
}

// The version first and last: a reader between the two sees an operation that runs.
void Tracer::begin(const core::TraceCall& call) {
  entry_ = call.ring.words ? call.ring.entry(call.channel, flags_.operation()) : nullptr;
  if (!entry_) return;
  std::atomic_ref(entry_[0]).store(2 * flags_.operation(), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (std::int64_t i = 1; i < call.ring.entry_words(); ++i) std::atomic_ref(entry_[i]).store(0, std::memory_order_relaxed);
  put(TraceWord::kind, static_cast<std::int64_t>(flags_.kind()));
  put(TraceWord::tokens, call.tokens);
  put(TraceWord::row_bytes, call.row_bytes);
  put(TraceWord::called, call.called_ns);
  put(TraceWord::thread_cpu, call.thread_cpu_ns);
  put(TraceWord::process_cpu, call.process_cpu_ns);
  put(TraceWord::begun, now_ns());
}

void Tracer::agreed(const core::AgreeArgs& args) {
  if (!entry_) return;
  const int me = args.topology->rank;
  const core::Records records{args.addresses->base[me], args.page, args.channel};
  std::int64_t rows = 0;
  for (int r = 0; r < args.topology->ranks; ++r) {
    put(r, TracePeer::arrived, records.of(r).sent_at_ns);
    const std::int64_t with = args.route.sent ? args.route.sent[r] : 0;
    put(r, TracePeer::rows, with);
    rows += with;
  }
  put(TraceWord::ready, records.of(me).sent_at_ns);
  if (args.kind == OperationKind::combine) put(TraceWord::rows, rows);
}

void Tracer::data_there() { put(TraceWord::data_there, now_ns()); }

void Tracer::moved(std::int64_t began_ns, std::int64_t close_sent_ns, int workers) {
  put(TraceWord::move_begin, began_ns);
  put(TraceWord::close_sent, close_sent_ns);
  put(TraceWord::num_sms, workers);
  put(flags_.rank(), TracePeer::closed, close_sent_ns);
}

void Tracer::closed() {
  for (int r = 0; entry_ && r < flags_.ranks(); ++r) {
    if (r != flags_.rank()) put(r, TracePeer::closed, flags_.closed_ns(r));
  }
}

void Tracer::end(const core::Report& report) {
  if (!entry_) return;
  using Outcome = OperationTrace::Outcome;
  const bool went = report.verdict.outcome == core::Outcome::go;
  const bool failed = report.failure.failed || flags_.own().failed;
  put(TraceWord::outcome, static_cast<std::int64_t>(failed ? Outcome::failed : went ? Outcome::done : Outcome::stopped));
  if (flags_.kind() == OperationKind::dispatch) put(TraceWord::rows, report.packed_rows);
  put(TraceWord::end, now_ns());
  std::atomic_ref(entry_[0]).store(2 * flags_.operation() + 1, std::memory_order_release);
}

}  // namespace sluice::cpu
