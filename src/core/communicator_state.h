// What stands behind a Communicator: calls in, scripts out.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <sluice/communicator.h>
#include <sluice/errors.h>

#include "core/argument_check.h"
#include "core/check_call.h"
#include "core/config.h"
#include "core/memory.h"
#include "core/protocol.h"
#include "core/sentences.h"
#include "engine/engine.h"

namespace sluice::core {

struct DispatchBlocks;

// Behind the name of a call.
inline constexpr const char* no_memory_left =
    ": this process has no memory left for what the call must note; free some, or raise the limit of the process or its container";

// Waits for a lane's event, then says what went wrong.
class EventState {
 public:
  EventState(std::shared_ptr<engine::LaneEvent> event, std::shared_ptr<Report> report, const Context& context)
      : event_(std::move(event)), report_(std::move(report)), context_(context) {}
  bool wait(std::chrono::milliseconds timeout) const;  // negative: without end. Throws the operation's error
  const std::shared_ptr<engine::LaneEvent>& lane_event() const { return event_; }
  void require_own_process() const;
  bool happened() const { return event_->state() != engine::LaneEvent::State::pending; }
  // Throws when this rank's ids were illegal and nobody has been told.
  void throw_untold_fault() const;

 private:
  mutable std::atomic<bool> told_{false};
  std::shared_ptr<engine::LaneEvent> event_;
  std::shared_ptr<Report> report_;
  Context context_;
};

class CommunicatorState {
 public:
  // `traced`: where operations are recorded, and what keeps that memory; null words: nowhere.
  CommunicatorState(Config config, std::vector<int> nodes, std::unique_ptr<engine::Engine> engine, TraceRing traced = {});

  // `stream`: the caller's, a native queue of the device.
  DispatchResult dispatch(const DispatchArgs& args, void* stream = nullptr);
  CombineResult combine(const CombineArgs& args, void* stream = nullptr);
  void used_on(const TensorView& view, void* stream);
  TensorView allocate(std::int64_t rows, std::int64_t row_bytes, DataType dtype);
  RoutingCounts count(const DispatchArgs& args) const;
  void set_deadline_ms(int deadline_ms);

  const Config& config() const { return config_; }
  const std::vector<int>& nodes() const { return nodes_; }
  engine::Engine& engine() { return *engine_; }
  const TraceRing& traced() const { return traced_; }

 private:
  struct Channel {
    std::atomic<bool> busy{false};
    std::int64_t calls = 0;
    std::int64_t events = 0;
    // Bounded dispatches whose ids are checked while they run: nobody has to wait for them.
    std::vector<std::shared_ptr<EventState>> checking;
  };
  // Admits one host thread to a channel, as long as it lives.
  class Admission {
   public:
    // Throws ArgumentError in a forked child, for a channel that there is not, and when another thread is inside.
    Admission(CommunicatorState& state, int channel, const std::string& where);
    ~Admission() {
      if (channel_) channel_->busy.store(false, std::memory_order_release);
    }
    Admission(const Admission&) = delete;
    Admission& operator=(const Admission&) = delete;
    // Of this channel, from 1. Counts dispatches and combines alike: ranks whose calls differed in kind have heard
    // so, and must number their next routes alike.
    std::int64_t next_call() { return ++channel_->calls; }

   private:
    Channel* channel_ = nullptr;
  };

  const std::string& where(OperationKind kind) const { return where_[static_cast<std::size_t>(kind)]; }  // none: count
  Context context(OperationKind kind, int channel, const RouteState* uses = nullptr) const;
  Caller caller_of(void* stream, RunOn run_on, const std::string& where, bool exact) const;
  using Events = std::vector<std::shared_ptr<engine::LaneEvent>>;
  void tell_refusal(OperationKind kind, int channel, const std::string& reason, Events events);
  // Lets the peers know, then throws what is being handled again, with the call where it lacks one. `events` are those that
  // the call's blocks wait for already.
  [[noreturn]] void refuse(OperationKind kind, const std::string& where, int channel, const Caller& caller, Events events);
  void hold(const DispatchArgs& args, const DispatchCall& call, const DispatchBlocks& blocks, void* stream, Common& common);
  void check_route(const Route& route, const std::string& where) const;
  // What an earlier bounded call found in its ids shows at the latest here (promise S4).
  void throw_earlier_fault(int channel);
  void throw_if_failed(OperationKind kind, int channel) const;
  void log(LogLevel level, const std::string& message) const;

  void require_own_process(const ArgumentCheck& check) const;
  // The next event of this channel.
  std::shared_ptr<engine::LaneEvent> next_event(int channel);
  void use_until(const ConstTensorView& view, const std::shared_ptr<engine::LaneEvent>& event, Common& common);
  void use_until(const std::shared_ptr<HeldBlock>& block, const std::shared_ptr<engine::LaneEvent>& event, Common& common);

  const pid_t process_ = getpid();
  Config config_;
  std::vector<int> nodes_;
  const TraceRing traced_;
  std::unique_ptr<engine::Engine> engine_;
  std::shared_ptr<Memory> memory_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<std::string> where_;
};

// What the arguments of every operation have in common.
PublishArgs publish_args(const engine::WindowView& window, int channel, const Digest& digest, Report* report);
AgreeArgs agree_args(const engine::WindowView& window, int channel, OperationKind kind, Report* report);

// Waits, in the lane, for what the block's memory was used for before.
void depend_on(Common& common, const HeldBlock& block);

}  // namespace sluice::core
