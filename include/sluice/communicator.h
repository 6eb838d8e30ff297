// The communicator: windows of all ranks, mapped, and the operations on them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sluice/combine.h>
#include <sluice/dispatch.h>
#include <sluice/export.h>
#include <sluice/group.h>
#include <sluice/options.h>
#include <sluice/trace.h>

namespace sluice {

namespace core {
class CommunicatorState;
}

// One addend of the memory that a communicator takes, for `info --size`.
struct SizeTerm {
  std::string name;
  std::int64_t bytes = 0;
};

struct WindowSize {
  std::int64_t window_bytes = 0;  // control page and arena, per rank
  std::int64_t arena_bytes = 0;
  std::vector<SizeTerm> terms;    // add up to window_bytes
};

// What count() returns. Shapes as in DispatchArgs.
struct RoutingCounts {
  std::vector<std::int64_t> tokens_per_rank;    // [R]
  std::vector<std::int64_t> tokens_per_expert;  // [E]; empty for a rank mask
  std::vector<std::uint8_t> rank_mask;          // [T, R]
};

// A move-only handle. Destroying it waits until this rank's operations have ended, at most the deadline
// and at most three seconds, and is not collective: the last peer to leave needs nobody. Results, routes
// and events may outlive it. Thread safety: dispatches and combines on different channels may run at the same time;
// two host threads inside calls on one channel at once: the second gets ArgumentError. Every other member function may
// be called by any thread at any time, but not while the communicator is made, moved or destroyed. After it was moved
// from, every member function throws ArgumentError.
class SLUICE_API Communicator {
 public:
  // Makes windows and maps those of the peers. Collective. Throws ArgumentError for illegal options
  // and for options that differ between ranks (naming both values), SystemError for too little memory
  // or an unusable engine, PeerError when a peer does not come.
  Communicator(const Group& group, const CommunicatorOptions& options);
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  // Sends every token to the ranks of its experts. Collective: per channel all ranks make the same
  // sequence of calls. Only queues the work, except that Counts::exact waits until the counts of all
  // ranks are known, and that a call waits while 1024 operations of its channel are under way (CUDA: 64).
  // Throws ArgumentError (nothing is lost, peers learn of it), CapacityError when the arena has no room, SystemError
  // when the heap has no memory for the call (peers learn of it), PeerError when the channel has failed or, with exact,
  // when a peer refused, differs, is late or gone. Bad ids of an earlier bounded call on this channel that nobody waited for
  // show here as ArgumentError; this call is then refused like an illegal one. With Counts::bounded it may be
  // captured into a graph, by a `stream` that is being captured (docs/semantics.md, Graphs); what cannot be captured
  // throws ArgumentError.
  DispatchResult dispatch(const DispatchArgs& args, Stream stream = {});

  // Brings rows home and sums them. Collective, only queues the work (and waits as dispatch where many operations are
  // under way). Errors and capture as dispatch.
  CombineResult combine(const CombineArgs& args, Stream stream = {});

  // Arena memory for combine inputs, [rows, row_bytes / size_of(dtype)] of `dtype`: from there combine
  // reads without a copy. Not collective. Waits until the memory may be written. Throws CapacityError, PeerError for
  // memory of a failed operation, ArgumentError for rows < 0, row_bytes that are not a multiple of 16 up to 65536, and
  // in a forked copy. May be called during capture: it gives nothing to a stream. A captured combine keeps the block.
  TensorView allocate(std::int64_t rows, std::int64_t row_bytes, DataType dtype = DataType::bf16);

  // The block under `view` is not reused before the work now in `stream` has passed. The stream of
  // the call that made the block is named already. No effect on the CPU engine, nor for memory outside of the arena.
  // May be called during capture, but the last view must not go while `stream` is being captured: the block would be
  // lost to the arena.
  void used_on(const TensorView& view, Stream stream);

  // What a dispatch with these decisions would send: local, no communication, synchronous. Uses expert_ids, rank_mask
  // or route of `args`, its `layout` (with a route: the route's) and its `checks`: ids as dispatch checks them. Ids and
  // mask must be there when it is called; for a route it waits until the dispatch that made it has ended. Throws
  // ArgumentError, SystemError when the heap has no memory for it. May be called during capture. The route of a call in
  // a graph is an ArgumentError.
  RoutingCounts count(const DispatchArgs& args) const;

  int rank() const;
  int size() const;
  int nodes() const;                // nodes of the group; more than one is not supported yet
  int node_of(int rank) const;      // 0 <= rank < size(), else ArgumentError
  int local_rank() const;           // within its node
  // 0 <= rank <= size(), else ArgumentError; experts of r are [first_expert(r), first_expert(r + 1)).
  int first_expert(int rank) const;
  int local_experts() const;
  const std::string& engine() const;
  int num_sms() const;              // CPU engine: workers
  WindowSize window_size() const;

  // The operations that are kept, by time of call: those that have ended, and for each channel the one that runs. An
  // operation has ended with its `ready` event (a combine: with `inputs_free`). Not collective. Throws ArgumentError when
  // nothing is traced.
  std::vector<OperationTrace> trace() const;

  // From now on, for waits that have begun too. 0 = without end. Not collective. Throws ArgumentError when negative.
  void set_deadline_ms(int deadline_ms);

  // What a communicator of this shape allocates. Local. Throws ArgumentError, and SystemError for an engine that is not
  // usable here.
  static WindowSize size_of(const CommunicatorOptions& options, int ranks);

  // Used by the library itself.
  const std::shared_ptr<core::CommunicatorState>& state() const { return state_; }

 private:
  std::shared_ptr<core::CommunicatorState> state_;
};

}  // namespace sluice
