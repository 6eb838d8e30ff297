// One channel's queue of scripts on the CPU, and its events.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "core/script.h"
#include "engine/cpu/channel_flags.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/releaser.h"
#include "engine/cpu/script_queue.h"
#include "engine/cpu/tracer.h"
#include "engine/engine.h"

namespace sluice::cpu {

class CpuLane;

class CpuEvent final : public engine::LaneEvent {
 public:
  State state() const override { return static_cast<State>(word_.load(std::memory_order_acquire)); }
  // A caller that would sleep without end runs the lane itself if nobody does: a short operation then costs
  // no hand-over.
  bool wait(std::chrono::milliseconds timeout) const override;
  void happen(State state);
  void belongs_to(std::weak_ptr<CpuLane> lane) { lane_ = std::move(lane); }

 private:
  bool sleep_until(std::int64_t end_ns) const;

  std::atomic<std::uint32_t> word_{0};
  mutable std::atomic<std::uint32_t> sleepers_{0};
  std::weak_ptr<CpuLane> lane_;
};

// More scripts than these are never under way in one lane: a host far ahead of a late peer would collect them, with
// what they keep and the blocks that wait for them.
inline constexpr int most_under_way = 1024;

// Scripts run in order, each step by one thread at a time: the lane's own, a caller in wait(), or, for a
// short operation, the caller in submit() as far as it gets without waiting.
class CpuLane final : public engine::Lane, public std::enable_shared_from_this<CpuLane> {
 public:
  struct Parts {
    std::unique_ptr<ChannelFlags> flags;
    WorkerTeam* team = nullptr;
    Releaser* releaser = nullptr;  // outlives the thread, though not the lane
    std::int64_t spin_ns = 0;
    std::int64_t scratch_bytes = 0;
  };

  explicit CpuLane(Parts parts);
  ~CpuLane() override;

  void submit(std::unique_ptr<core::Script> script) override;
  core::Status failure() const override { return parts_.flags->own(); }
  ChannelFlags& flags() { return *parts_.flags; }

  // Runs what is queued until `event` has happened or nothing is left, unless another thread does.
  void help(const CpuEvent& event);
  void drain();
  // Ends the thread, which has nothing left to run.
  void stop();

 private:
  struct alignas(64) ScratchUnit {
    std::byte bytes[64];
  };
  // Whether a step may wait for peers or events; a caller in submit() must not.
  enum class Patience { none, any };

  void serve();
  // With `running_` held.
  bool next_step(Patience patience);
  // Whether a caller in submit() may take it.
  bool is_brief(const core::Step& step, const core::Report& report) const;
  bool finish_here();
  void take_step(const core::Step& step, core::Report& report);
  void run(const core::Run& step, core::Report& report);
  void depend(const core::Depend& step);

  Parts parts_;
  Tracer tracer_;
  std::unique_ptr<ScratchUnit[]> scratch_;
  std::mutex queue_mutex_;
  std::condition_variable grown_;    // for the lane's thread: the queue grew, or stop
  std::condition_variable shrunk_;   // a script left the queue
  ScriptQueue queue_;
  int queued_ = 0;
  bool stopping_ = false;
  std::mutex running_;               // held by the thread that runs steps
  std::size_t at_ = 0;               // next step of the first script
  bool begun_ = false;               // the first script has
  std::thread thread_;
};

}  // namespace sluice::cpu
