#include <algorithm>

#include <sluice/trace.h>

namespace sluice {

namespace {

// Peers that come so close to the last one share its blame.
constexpr double as_late_as = 0.9;

void share_blame(Attribution& parts) {
  const auto to_blame = [&](std::int64_t late) {
    return late > 0 && static_cast<double>(late) >= as_late_as * static_cast<double>(parts.wait);
  };
  const auto sharers = std::count_if(parts.lateness.begin(), parts.lateness.end(), to_blame);
  std::int64_t left = parts.wait, heirs = sharers;
  for (std::size_t r = 0; r < parts.lateness.size(); ++r) {
    if (!to_blame(parts.lateness[r])) continue;
    parts.blame[r] = left / heirs--;
    left -= parts.blame[r];
  }
}

}  // namespace

Attribution attribute(const OperationTrace& op) {
  Attribution parts;
  const std::size_t ranks = op.arrived_ns.size();
  parts.lateness.resize(ranks);
  parts.blame.resize(ranks);
  parts.peer_move.resize(ranks);
  if (op.outcome != OperationTrace::Outcome::done || op.closed_ns.size() != ranks) return parts;
  // Each part begins where the one before ends.
  std::int64_t now = op.begun_ns;
  const auto until = [&](std::int64_t then) {
    const std::int64_t part = std::max<std::int64_t>(0, then - now);
    now += part;
    return part;
  };
  for (std::size_t r = 0; r < ranks; ++r) {
    parts.lateness[r] = std::max<std::int64_t>(0, op.arrived_ns[r] - op.ready_ns);
    parts.peer_move[r] = std::max<std::int64_t>(0, op.closed_ns[r] - op.move_end_ns);
  }
  parts.before = until(op.ready_ns);
  if (ranks > 0) parts.wait = until(*std::max_element(op.arrived_ns.begin(), op.arrived_ns.end()));
  parts.data = until(op.data_ns);
  parts.scheduling = until(op.move_begin_ns);
  parts.move = until(op.move_end_ns);
  if (ranks > 0) parts.closing = until(*std::max_element(op.closed_ns.begin(), op.closed_ns.end()));
  parts.after = until(op.end_ns);
  parts.total = now - op.begun_ns;
  share_blame(parts);
  return parts;
}

}  // namespace sluice
