// Ranks, channels and a list of operations, called through core on the step-driven engine. The host has
// run ahead of everything: all scripts are queued before the first step. What a rank's caller does on the
// device's side of the calls (read results, write inputs) are steps of its own, joined to the lanes by
// events, as the kernels of a caller's stream would be.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/communicator_state.h"
#include "protocol/step_engine.h"

namespace sluice::protocol {

struct Plan {
  int ranks = 2;
  int channels = 1;
  std::string ops = "DCD";             // of each channel; C follows the last D
  bool exact = false;                  // the next call is made when the counts are known
  bool gathers = false;                // inputs of combine lie outside the arena
  bool frees_inputs_at_ready = false;  // mutation of the caller: inputs are overwritten when the sum is there
  std::vector<std::vector<int>> channel_order;  // per rank; empty: ascending
  int refusing_rank = -1;                       // makes operation `refused_operation` with illegal arguments
  int refused_operation = 0;
  std::int64_t arena_bytes = 8192;
  Mutation mutation;
};

// One token of every rank to every rank, in every dispatch.
inline constexpr int hidden = 8;

struct CallerStep {
  enum Kind { check_dispatch, write_inputs, check_combine, overwrite_inputs } kind;
  int channel = 0;
  int operation = 0;
  const StepEvent* after = nullptr;  // null: at once
  const StepEvent* happens = nullptr;
  const core::Report* report = nullptr;   // of the operation
  const core::Report* made_by = nullptr;  // of the dispatch
  int dispatch = 0;                       // operation that made the route
  std::uint16_t* rows = nullptr;
  std::uint32_t rows_bytes = 0;
  DispatchResult outputs;  // without owners
};

class Scenario {
 public:
  explicit Scenario(const Plan& plan);

  const Plan& plan() const { return plan_; }
  StepWorld& world() { return *world_; }
  int processes() const { return world_->lanes() + plan_.ranks; }
  int steps(int process) const;
  bool done(int process) const { return world_->machine().pc(process) >= steps(process); }
  bool can_step(int process) const;
  void step(int process);
  std::string describe_step(int process, int index) const;
  const CallerStep& caller_step(int rank, int index) const {
    return callers_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)];
  }
  int reused_blocks() const { return reused_blocks_; }  // dependencies on earlier uses of memory

 private:
  struct Channel {
    DispatchResult dispatch;  // the last, until it is dropped
    int operation = 0;        // its number
    const core::Report* report = nullptr;
    std::vector<CallerStep> pending;  // what the caller does with the last operation's result
    const StepEvent* inputs_free = nullptr;
    std::uint16_t* inputs = nullptr;  // outside the arena
  };

  void call_all(int rank);
  void call_dispatch(int rank, int channel, int k, Channel& state);
  void call_combine(int rank, int channel, int k, Channel& state);
  bool refuses(int rank, int channel, int k) const;
  void edit(core::Script& script, int rank);
  bool foresee_counts(const StepEvent& event);
  std::shared_ptr<StepEvent> used_by_caller(int rank);
  void check_dispatch(const CallerStep& step, int rank);
  void check_combine(const CallerStep& step, int rank);
  void fail(const std::string& what);

  Plan plan_;
  std::unique_ptr<StepWorld> world_;
  std::vector<std::unique_ptr<core::CommunicatorState>> comms_;
  std::vector<std::vector<CallerStep>> callers_;
  std::vector<std::shared_ptr<engine::LaneEvent>> counts_known_;  // per rank: before its next call
  std::vector<std::shared_ptr<StepEvent>> events_;
  std::vector<std::unique_ptr<std::uint16_t[]>> rows_;
  std::vector<std::unique_ptr<std::int32_t[]>> ids_;
  core::Report* waiting_for_counts_ = nullptr;
  int calling_rank_ = 0;
  int calling_channel_ = 0;
  int reused_blocks_ = 0;
};

// The values that must arrive. `number`: of the operation in all, over the channels.
float row_value(int ranks, int source, int number);
float input_value(int ranks, int source, int dispatch, int rank, int combine);
float sum_value(int ranks, int source, int dispatch, int combine);
int expert_of_slot(int ranks, int slot, int number);
std::uint16_t bf16_of(float value);
float float_of(std::uint16_t bits);
bool looks_well(const core::Report& report);  // what the caller is told

}  // namespace sluice::protocol
