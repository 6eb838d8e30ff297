#include "cli/trace_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

namespace sluice::cli {
namespace {

using Outcome = OperationTrace::Outcome;

// Numbers of threads: ranks have more room than there are channels, and none is 0, which viewers take for an idle one.
constexpr std::int64_t threads_of_a_rank = 1000;
constexpr std::int64_t first_copy_row = 500;

// Some readers multiply by 1000 and cut the rest off: where the nearest number lies below the nanosecond, it is the next
// one. Otherwise a slice could end a nanosecond after the one around it, and be dropped.
double microseconds(std::int64_t ns) {
  double us = static_cast<double>(ns) / 1000;
  if (static_cast<std::int64_t>(us * 1000) < ns) us = std::nextafter(us, std::numeric_limits<double>::infinity());
  return us;
}

bool is_done(const OperationTrace& op) { return op.outcome == Outcome::done && op.end_ns > 0; }
bool is_unfinished(const OperationTrace& op) { return op.outcome == Outcome::running || op.end_ns == 0; }

std::int64_t last_stamp(const OperationTrace& op) {
  return std::max({op.called_ns, op.begun_ns, op.ready_ns, op.data_ns, op.move_begin_ns, op.move_end_ns, op.end_ns});
}

const char* reached_by(const OperationTrace& op) {
  if (op.move_end_ns > 0) return "own rows moved";
  if (op.move_begin_ns > 0) return "move begun";
  if (op.ready_ns > 0) return "all ranks there";
  return "begun, or waiting for other ranks";
}

const char* name_of(Outcome outcome) {
  constexpr const char* names[] = {"running", "done", "stopped", "failed"};
  return names[static_cast<std::size_t>(outcome)];
}

// "rank 3", or "ranks 1, 3".
std::string text_of_ranks(const std::vector<std::size_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
}

struct Part {
  const char* category;
  const char* colour;  // of Chrome's viewer; Perfetto chooses by name
  std::int64_t ns;
};

std::vector<Part> parts_of(const Attribution& a) {
  return {{"before", "grey", a.before},
          {"wait", "bad", a.wait},
          {"data", "thread_state_uninterruptible", a.data},
          {"scheduling", "thread_state_runnable", a.scheduling},
          {"move", "good", a.move},
          {"closing", "olive", a.closing},
          {"after", "grey", a.after}};
}

Json attribution_record(const Attribution& parts) {
  Json record{{"total", microseconds(parts.total)}};
  for (const Part& part : parts_of(parts)) record[part.category] = microseconds(part.ns);
  return record;
}

class EventWriter {
 public:
  EventWriter(const TraceFolder& folder, const std::function<void(const Json&)>& put) : folder_(folder), put_(put) {}

  EventCounts write() {
    find_origin();
    for (const TracedCommunicator& communicator : folder_.communicators) {
      ++number_;
      first_process_ = counts_.ranks + 1;
      find_operations(communicator);
      for (const RankTrace& rank : communicator.ranks) write_rank(rank);
    }
    return counts_;
  }

 private:
  using OperationKey = std::pair<int, std::int64_t>;  // channel, number
  struct Drawn {
    std::int64_t process = 0;
    std::map<OperationKey, const OperationTrace*> operations;
  };

  void find_origin() {
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    for (const TracedCommunicator& communicator : folder_.communicators) {
      for (const RankTrace& rank : communicator.ranks) {
        for (const OperationTrace& op : rank.operations) first = std::min({first, op.called_ns, op.begun_ns});
        for (const CopyTrace& copy : rank.copies) first = std::min(first, copy.begun_ns);
      }
    }
    origin_ns_ = first;
  }

  // Where arrows can begin, and when anything was last heard of.
  void find_operations(const TracedCommunicator& communicator) {
    drawn_.clear();
    last_ns_ = 0;
    std::int64_t process = first_process_;
    for (const RankTrace& rank : communicator.ranks) {
      Drawn& drawn = drawn_[rank.rank];
      drawn.process = process++;
      for (const OperationTrace& op : rank.operations) {
        drawn.operations[{op.channel, op.operation}] = &op;
        last_ns_ = std::max(last_ns_, last_stamp(op));
      }
    }
  }

  double at(std::int64_t ns) const { return microseconds(ns - origin_ns_); }

  Json event(const char* phase, std::int64_t thread) const {
    return {{"ph", phase}, {"pid", process_}, {"tid", process_ * threads_of_a_rank + thread}};
  }

  void slice(std::int64_t thread, const std::string& name, const char* category, const char* colour, std::int64_t begin,
             std::int64_t length, Json args) {
    Json object = event("X", thread);
    object["name"] = name;
    object["cat"] = category;
    if (colour != nullptr) object["cname"] = colour;
    object["ts"] = at(begin);
    object["dur"] = microseconds(length);
    if (!args.empty()) object["args"] = std::move(args);
    put_(object);
  }

  void label(const char* what, std::int64_t thread, const char* key, Json value) {
    Json object = event("M", thread);
    object["name"] = what;
    object["args"][key] = std::move(value);
    put_(object);
  }

  void label_thread(std::int64_t thread, const std::string& name) {
    label("thread_name", thread, "name", name);
    label("thread_sort_index", thread, "sort_index", thread);
  }

  void write_rank(const RankTrace& rank) {
    process_ = ++counts_.ranks;
    counts_.lost += rank.lost;
    const bool several = folder_.communicators.size() > 1;
    label("process_name", 1, "name", several ? fmt::format("rank {} of communicator {}", rank.rank, number_) : fmt::format("rank {}", rank.rank));
    label("process_sort_index", 1, "sort_index", process_);
    label("process_labels", 1, "labels",
          fmt::format("communicator {}, {} engine, process {} of {}", rank.communicator, rank.engine, rank.process, rank.host));
    for (int channel = 0; channel < rank.channels; ++channel) label_thread(channel + 1, fmt::format("channel {}", channel));
    for (const OperationTrace& op : rank.operations) write_operation(op);
    write_copies(rank);
  }

  void write_operation(const OperationTrace& op) {
    ++counts_.operations;
    const char* const kind = op.combine ? "combine" : "dispatch";
    Json args{{"operation", op.operation}, {"tokens", op.tokens},      {"rows", op.rows},
              {"row_bytes", op.row_bytes}, {"bytes", op.rows * op.row_bytes}, {"workers", op.num_sms},
              {"outcome", name_of(op.outcome)}, {"queued_us", microseconds(std::max<std::int64_t>(0, op.begun_ns - op.called_ns))}};
    const std::int64_t thread = op.channel + 1;
    if (is_unfinished(op)) {
      ++counts_.unfinished;
      args["unfinished"] = true;
      args["reached"] = reached_by(op);
      // To the last moment that any rank has left a trace of.
      slice(thread, std::string(kind) + " (unfinished)", "operation", "terrible", op.begun_ns,
            std::max<std::int64_t>(1, last_ns_ - op.begun_ns), std::move(args));
      return;
    }
    if (!is_done(op)) {
      slice(thread, fmt::format("{} ({})", kind, name_of(op.outcome)), "operation", "terrible", op.begun_ns,
            std::max<std::int64_t>(1, op.end_ns - op.begun_ns), std::move(args));
      return;
    }
    const Attribution parts = attribute(op);
    args["attribution_us"] = attribution_record(parts);
    args["waited_for_us"] = Json::object();
    for (const std::size_t r : blamed(parts)) args["waited_for_us"][fmt::format("rank {}", r)] = microseconds(parts.blame[r]);
    slice(thread, kind, "operation", nullptr, op.begun_ns, parts.total, std::move(args));
    write_parts(op, parts);
  }

  static std::vector<std::size_t> blamed(const Attribution& parts) {
    std::vector<std::size_t> ranks;
    for (std::size_t r = 0; r < parts.blame.size(); ++r) {
      if (parts.blame[r] > 0) ranks.push_back(r);
    }
    return ranks;
  }

  void write_parts(const OperationTrace& op, const Attribution& parts) {
    std::int64_t now = op.begun_ns;
    for (const Part& part : parts_of(parts)) {
      if (part.ns == 0) continue;
      const bool waits = std::string_view(part.category) == "wait";
      slice(op.channel + 1, waits ? "wait for " + text_of_ranks(blamed(parts)) : part.category, part.category, part.colour, now,
            part.ns, {});
      now += part.ns;
      if (!waits) continue;
      for (const std::size_t r : blamed(parts)) write_arrow(static_cast<int>(r), op, now - part.ns, now);
    }
  }

  // Its ends lie a nanosecond or two before the OPEN and the end of the wait, which are one moment: at a moment itself the
  // slices that end there are over.
  void write_arrow(int from, const OperationTrace& op, std::int64_t wait_begin, std::int64_t wait_end) {
    const auto peer = drawn_.find(from);
    if (peer == drawn_.end()) return;
    const auto late = peer->second.operations.find({op.channel, op.operation});
    if (late == peer->second.operations.end()) return;
    const std::int64_t end = std::max(wait_begin, wait_end - 1);
    const std::int64_t begin = std::max(late->second->begun_ns, std::min(end, op.arrived_ns[static_cast<std::size_t>(from)] - 2));
    if (begin > end) return;
    Json arrow = event("s", op.channel + 1);
    arrow["pid"] = peer->second.process;
    arrow["tid"] = peer->second.process * threads_of_a_rank + op.channel + 1;
    arrow["name"] = arrow["cat"] = "late";
    arrow["id"] = ++counts_.arrows;
    arrow["ts"] = at(begin);
    put_(arrow);
    arrow.update(event("f", op.channel + 1));
    arrow["bp"] = "e";  // ends in the slice that is there, not in the next one
    arrow["ts"] = at(end);
    put_(arrow);
  }

  // Copies that overlap lie in rows of their own: slices of one row must nest.
  void write_copies(const RankTrace& rank) {
    std::vector<std::int64_t> free_at;
    for (const CopyTrace& copy : rank.copies) {
      auto row = std::find_if(free_at.begin(), free_at.end(), [&](std::int64_t end) { return end <= copy.begun_ns; });
      if (row == free_at.end()) row = free_at.insert(row, 0);
      const std::int64_t length = std::max<std::int64_t>(1, copy.end_ns - copy.begun_ns);
      *row = copy.begun_ns + length;
      ++counts_.copies;
      slice(first_copy_row + (row - free_at.begin()), copy.to_host ? "copy to host" : "copy to device", "copy", "rail_load",
            copy.begun_ns, length, {{"bytes", copy.bytes}, {"gb_per_s", static_cast<double>(copy.bytes) / static_cast<double>(length)}});
    }
    for (std::size_t i = 0; i < free_at.size(); ++i)
      label_thread(first_copy_row + static_cast<std::int64_t>(i), i == 0 ? "host copies" : fmt::format("host copies {}", i + 1));
  }

  const TraceFolder& folder_;
  const std::function<void(const Json&)>& put_;
  EventCounts counts_;
  std::int64_t origin_ns_ = 0, last_ns_ = 0;
  std::int64_t process_ = 0, first_process_ = 1;
  int number_ = 0;  // of the communicator
  std::map<int, Drawn> drawn_;
};

}  // namespace

EventCounts write_events(const TraceFolder& folder, const std::function<void(const Json&)>& put) {
  return EventWriter(folder, put).write();
}

}  // namespace sluice::cli
