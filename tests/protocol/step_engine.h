// A second engine: all ranks in one thread, nothing runs until a test says which step is next. It
// runs the scripts of core with the kernels of the CPU engine; stores to peers, resets and signals go
// through the write buffer of the lane.
#pragma once

#include <cstring>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/script.h"
#include "core/status.h"
#include "engine/engine.h"
#include "protocol/machine.h"

namespace sluice::protocol {

inline constexpr int most_ranks = 4;

// What a test may break. The scripts are edited through `edit`, before they are queued.
struct Mutation {
  Weakness memory;
  bool resets_after_signal = false;
  bool one_flag_for_both_stages = false;
  bool ignores_block_events = false;   // memory is reused without waiting
  bool ignores_failed_blocks = false;  // memory of failed operations is reused
  bool fails_silently = false;         // flags are raised after a failure, and no status
  bool unfenced_rows = false;          // rows are streamed and no fence follows: signals overtake them
  bool status_after_flag = false;      // a failure's flags overtake its status
  bool forgets_failure = false;        // a failure ends with its operation
  std::function<void(core::Script&, int rank)> edit;
};

// The flags of one (rank, channel), in its window.
struct StepFlags {
  std::uint8_t flag[2][8] = {};
  core::Status told[most_ranks];
  core::Status own;
  std::uint8_t has_told[8] = {};
};

class StepWorld;

class StepEvent final : public engine::LaneEvent {
 public:
  StepEvent(StepWorld& world, std::uint8_t* state) : world_(&world), state_(state) {}
  State state() const override { return static_cast<State>(*state_); }
  bool wait(std::chrono::milliseconds timeout) const override;
  void happen(State state) const;
  std::uint8_t* word() const { return state_; }

 private:
  StepWorld* world_;
  std::uint8_t* state_;
};

// One step that a lane does at once.
struct LaneStep {
  core::Script* script = nullptr;
  std::size_t index = 0;
  const core::Step& step() const { return script->steps[index]; }
};

class StepLane final : public engine::Lane {
 public:
  StepLane(StepWorld& world, int rank, int channel, StepFlags* flags);
  void submit(std::unique_ptr<core::Script> script) override;
  core::Status failure() const override { return flags_->own; }

  int process() const { return process_; }
  int rank() const { return rank_; }
  int channel() const { return channel_; }
  const std::vector<LaneStep>& steps() const { return steps_; }
  const std::vector<std::unique_ptr<core::Script>>& scripts() const { return scripts_; }
  int pc() const;
  bool done() const { return pc() >= static_cast<int>(steps_.size()); }
  bool can_step() const;
  void step();
  // Waits for a peer whose flag is missing.
  bool waits() const;
  void give_up();
  std::string describe_step(int index) const;

  // core/status.h
  core::Status own() const { return flags_->own; }
  void fail(const core::Status& status);
  core::Status told_by(int peer) const { return flags_->told[peer]; }
  void reset(core::Stage stage);
  void release() {}
  void tell(int peer, const core::Status& status);
  void raise(int peer, core::Stage stage);
  int ranks() const;
  std::int64_t operation() const;

  std::uint32_t flag_at(core::Stage stage, int peer) const;
  const StepFlags& flags() const { return *flags_; }

 private:
  int first_missing(core::Stage stage) const;
  int first_telling() const;
  void give_up(const core::Status& status);
  void run(const core::Run& run, core::Report& report);
  void finish(core::Tail tail);
  void run_with_remote_stores(const core::Run& run, std::int64_t number, bool fenced);
  void run_with_late_stores(const core::Run& run, std::int64_t number);
  void push_differences(int r, std::uint32_t key, bool fenced);
  void depend(const core::Depend& depend);

  StepWorld& world_;
  int rank_, channel_, process_;
  StepFlags* flags_;
  std::vector<std::unique_ptr<core::Script>> scripts_;
  std::vector<LaneStep> steps_;
  std::vector<std::int64_t> numbers_;  // of the operation of each step, from 1
};

class StepEngine final : public engine::Engine {
 public:
  StepEngine(StepWorld& world, int rank);
  int default_num_sms() const override { return 1; }
  const engine::WindowView& window() const override { return view_; }
  engine::Lane& lane(int channel) override;
  std::shared_ptr<engine::LaneEvent> make_event() override;
  std::shared_ptr<core::Report> make_report() override;
  void fetch(void* to, const void* from, std::int64_t bytes) override { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }
  void set_deadline_ms(int) override {}

 private:
  StepWorld& world_;
  int rank_;
  engine::WindowView view_;
};

struct WorldShape {
  int ranks = 2;
  int channels = 1;
  int experts = 2;
  std::int64_t arena_bytes = 8192;
  std::size_t spare_bytes = 1 << 16;  // reports and events
};

// What the engines of all ranks share.
class StepWorld {
 public:
  StepWorld(const WorldShape& shape, Mutation mutation);

  Machine& machine() { return machine_; }
  const Mutation& mutation() const { return mutation_; }
  const WorldShape& shape() const { return shape_; }
  StepLane& lane(int rank, int channel) {
    return *lanes_[static_cast<std::size_t>(rank * shape_.channels + channel)];
  }
  StepLane& lane(int process) { return *lanes_[static_cast<std::size_t>(process)]; }
  int lanes() const { return static_cast<int>(lanes_.size()); }
  std::shared_ptr<StepEvent> make_event();

  struct Window {
    std::byte* base = nullptr;
    std::int64_t bytes = 0;
  };
  const Window& window(int rank) const { return windows_[static_cast<std::size_t>(rank)]; }
  const core::PageLayout& page() const { return page_; }
  std::int64_t arena_offset() const { return core::align_up(page_.bytes(), 64); }
  const core::AddressTable& addresses() const { return addresses_; }
  const core::Topology& topology(int rank) const { return topologies_[static_cast<std::size_t>(rank)]; }

  // Found while a step ran; the exploration reads and clears it.
  std::string error;
  // The words that the last kernel changed, for the check of footprints.
  std::vector<std::uint32_t> changed;
  // A host that waits for an event inside a call.
  std::function<bool(const StepEvent&)> host_waits;
  // Nobody gives up, dies or refuses: every operation must succeed.
  bool all_must_succeed = true;

 private:
  WorldShape shape_;
  Mutation mutation_;
  core::PageLayout page_;
  Machine machine_;
  std::vector<Window> windows_;
  core::AddressTable addresses_;
  std::vector<core::Topology> topologies_;
  std::vector<std::unique_ptr<StepLane>> lanes_;
};

std::int64_t engine_bytes(int channels);
const char* name_of(core::Stage stage);
// Says what is wrong with making this store visible now; empty: nothing.
std::string lost_signal(StepWorld& world, int lane, const Entry& entry);
std::string describe(StepWorld& world, std::uint32_t at);

}  // namespace sluice::protocol
