// What an engine is to core: lanes that run scripts, a window that peers can map, and the kernels of
// core/kernels.h behind Lane::submit. Another engine implements this without touching src/core.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "core/place.h"
#include "core/record.h"
#include "core/script.h"

namespace sluice::engine {

// A point in a lane. Made by Engine::make_event, happens once.
class LaneEvent {
 public:
  enum class State { pending, happened, failed };  // failed: the channel had failed when it happened
  virtual ~LaneEvent() = default;
  virtual State state() const = 0;
  // Blocks the host; false when it has not happened within `timeout` (negative: without end).
  virtual bool wait(std::chrono::milliseconds timeout) const = 0;
  // Where it stands, for core: of two events of one channel of a communicator, the one with the higher number
  // happens later, and fails if the other has failed.
  struct Order {
    int channel = -1;  // none
    std::int64_t number = 0;
  };
  Order order;
  // It was recorded into a graph: it happens whenever the graph runs, and no host can wait for it.
  virtual bool captured() const { return false; }
  // What is given to this native queue of the device from now on runs after the event.
  virtual void stream_wait(void*) const { wait(std::chrono::milliseconds(-1)); }
};

// An ordered queue of steps: the operations of one channel.
class Lane {
 public:
  virtual ~Lane() = default;
  // Queues and returns. Scripts run in the order of submission.
  virtual void submit(std::unique_ptr<core::Script> script) = 0;
  // The sticky failure of this channel as the host sees it now.
  virtual core::Status failure() const = 0;
};

// Memory of this rank that every rank of the node can address: control page, then arena.
struct WindowView {
  std::int32_t rank = 0;
  std::byte* base = nullptr;
  core::PageLayout page;
  std::int64_t arena_offset = 0;
  std::int64_t arena_bytes = 0;
  const core::AddressTable* addresses = nullptr;  // all ranks' windows, where kernels read it
  const core::Topology* topology = nullptr;       // where kernels read it
  std::shared_ptr<const void> keep;               // results that outlive the engine hold it
  // When the work that a native queue holds now has passed, null if it has; empty for an engine without such queues.
  std::function<std::shared_ptr<LaneEvent>(void* stream)> event_on;
};

class Engine {
 public:
  // Everything submitted has run, by success or by failure, when the destructor returns.
  virtual ~Engine() = default;
  virtual int default_num_sms() const = 0;
  // What Status::code numbers, for messages that may outlive the engine.
  virtual const char* device_error() const { return "error"; }
  virtual const WindowView& window() const = 0;
  virtual Lane& lane(int channel) = 0;
  virtual std::shared_ptr<LaneEvent> make_event() = 0;
  // A report with room for R + L counts, cleared.
  virtual std::shared_ptr<core::Report> make_report() = 0;
  virtual void set_deadline_ms(int deadline_ms) = 0;
  // Whether what a native queue is given now goes into a graph. Throws where this engine cannot be captured.
  virtual bool captures(void* /*stream*/) const { return false; }
  // Copies what a call may name, or lies in the arena, to the host. Waits for the copy alone.
  virtual void fetch(void* to, const void* from, std::int64_t bytes) = 0;
};

// What an engine is made from.
struct EngineSpec {
  core::Topology topology;
  core::PageLayout page;  // made with the engine's flag bytes
  std::int64_t arena_bytes = 0;
  int deadline_ms = 0;
  int workers = 0;
};

}  // namespace sluice::engine
