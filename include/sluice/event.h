// The end of an operation, or of a part of it.
#pragma once

#include <cstdint>
#include <memory>

#include <sluice/export.h>

namespace sluice {

namespace core {
class EventState;
}

// A native queue of the engine's device: a cudaStream_t as a pointer. The CPU engine has none.
struct Stream {
  void* handle = nullptr;
};

// A copyable handle. An empty one has happened already. Others come from the results of dispatch and combine; a
// caller cannot make one for work of his own. Thread-safe.
class SLUICE_API Event {
 public:
  Event() = default;

  // Blocks until it has happened. Throws what went wrong in the operation: PeerError, CapacityError
  // (every rank), ArgumentError (ids found illegal while the operation ran). Throws the same again
  // when called again. The event of a call that was captured into a graph belongs to the graph: wait,
  // wait_for and query throw ArgumentError. So do all four in a forked child for an event that had not happened.
  void wait() const;

  // The same for at most `timeout_ms` milliseconds; false when it has not happened by then. Throws ArgumentError
  // when that is negative.
  bool wait_for(int timeout_ms) const;

  // Whether it has happened, without waiting; throws as wait() once it has, and failed.
  bool query() const;

  // Work given to `stream` afterwards runs after this event. Does not throw for a failed operation (its
  // counts are 0 then). Blocks until the operation has been queued to its end: where a host thread waits for
  // peers (docs/semantics.md), until they have come. On the CPU engine, which has no streams, it blocks as
  // wait() does.
  void stream_wait(Stream stream) const;

  // Used by the library itself.
  explicit Event(std::shared_ptr<core::EventState> state) : state_(std::move(state)) {}
  const std::shared_ptr<core::EventState>& state() const { return state_; }

 private:
  std::shared_ptr<core::EventState> state_;
};

}  // namespace sluice
