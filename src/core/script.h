// An operation as a value: a short list of steps for one lane, built in core only (protocol.h), run by an
// engine, stepped by a test, read by a tracer.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "core/kernels.h"

namespace sluice::engine {
class LaneEvent;
}

namespace sluice::core {

// A kernel, then its tail, as one step.
struct Run {
  KernelArgs kernel;
  Tail tail = {};
  Stamp stamp = Stamp::none;
  int num_sms = 0;  // at most; 0 = the engine's default
  // Runs in a failed channel too: plan and finish. An operation queued behind the one that failed would else
  // hand out the route and the counts that its memory held before.
  bool always = false;
};

// The lane goes on when every peer has raised the flag of this stage. Never resets it.
struct Await {
  Stage stage = Stage::open;
  Stamp stamp = Stamp::none;
};

// The lane goes on when the event has happened. A block of the arena that comes from a failed operation
// must not be used: `guards_block` makes that a failure of this channel too.
struct Depend {
  std::shared_ptr<engine::LaneEvent> event;
  bool guards_block = false;
};

// The event happens when the lane gets here.
struct Record {
  std::shared_ptr<engine::LaneEvent> event;
};

using Step = std::variant<Run, Await, Depend, Record>;

// The native queue of the caller.
struct Caller {
  void* stream = nullptr;
  bool runs = false;      // the operation, instead of the lane
  bool captured = false;  // into a graph, which keeps the script and runs it any number of times; then `runs` too
};

struct Script {
  OperationKind kind = OperationKind::none;
  Caller caller;
  std::shared_ptr<Report> report;
  std::int64_t bytes = 0;  // that this rank moves, about: an engine may treat a short operation otherwise
  std::vector<Step> steps;
  std::vector<std::shared_ptr<const void>> keep;  // alive until the last step has passed
  std::unique_ptr<Script> next;  // in the queue of its lane
};

}  // namespace sluice::core
