#include "engine/cpu/lane.h"

#include <type_traits>
#include <utility>

#include "core/status.h"
#include "engine/cpu/float_defaults.h"

namespace sluice::cpu {

using core::Report;
using core::Status;

bool CpuEvent::sleep_until(std::int64_t end_ns) const {
  while (state() == State::pending) {
    const std::int64_t left = end_ns < 0 ? -1 : end_ns - now_ns();
    if (end_ns >= 0 && left <= 0) return false;
    futex_wait(word_, 0, left, Shared::no);
  }
  return true;
}

bool CpuEvent::wait(std::chrono::milliseconds timeout) const {
  if (state() != State::pending) return true;
  // With a limit the caller must not get stuck in a peer's wait.
  if (timeout.count() >= 0) return sleep_until(now_ns() + timeout.count() * 1'000'000);
  if (const auto lane = lane_.lock()) lane->help(*this);
  return sleep_until(-1);
}

void CpuEvent::sleep() const { sleep_until(-1); }

void CpuEvent::happen(State state) {
  word_.store(static_cast<std::uint32_t>(state), std::memory_order_release);
  futex_wake_all(word_, Shared::no);
}

CpuLane::CpuLane(Parts parts) : parts_(std::move(parts)), thread_([this] { serve(); }) {}

CpuLane::~CpuLane() {
  {
    const std::lock_guard lock(queue_mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CpuLane::submit(std::unique_ptr<core::Script> script) {
  for (core::Step& step : script->steps) {
    if (auto* const record = std::get_if<core::Record>(&step)) {
      static_cast<CpuEvent&>(*record->event).belongs_to(weak_from_this());
    }
  }
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back(std::move(script));
  }
  changed_.notify_all();
}

void CpuLane::serve() {
  while (true) {
    {
      std::unique_lock lock(queue_mutex_);
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
    }
    const std::lock_guard lock(running_);
    while (next_step()) {
    }
  }
}

void CpuLane::help(const CpuEvent& event) {
  const std::unique_lock lock(running_, std::try_to_lock);
  if (!lock) return;
  while (event.state() == engine::LaneEvent::State::pending && next_step()) {
  }
}

void CpuLane::drain() {
  std::unique_lock lock(queue_mutex_);
  changed_.wait(lock, [&] { return queue_.empty(); });
}

// Runs one step of the first script; false when nothing is queued. A script leaves the queue after its
// last step and after what it kept alive has been let go.
bool CpuLane::next_step() {
  core::Script* script = nullptr;
  {
    const std::lock_guard lock(queue_mutex_);
    if (queue_.empty()) return false;
    script = queue_.front().get();
  }
  if (at_ == 0) parts_.flags->begin(script->kind);
  if (at_ < script->steps.size()) {
    const core::Step& step = script->steps[at_++];
    Report& report = *script->report;
    if (const auto* const kernel = std::get_if<core::Run>(&step)) run(*kernel, report);
    if (const auto* const wait = std::get_if<core::Await>(&step)) {
      parts_.flags->await(wait->stage, {report.operation == 0, parts_.spin_ns});
      if (wait->stamp != core::Stamp::none) report.stamps[static_cast<int>(wait->stamp)] = now_ns();
    }
    if (const auto* const dependency = std::get_if<core::Depend>(&step)) depend(*dependency);
    if (const auto* const record = std::get_if<core::Record>(&step)) {
      const bool failed = parts_.flags->own().failed != 0;
      static_cast<CpuEvent&>(*record->event)
          .happen(failed ? engine::LaneEvent::State::failed : engine::LaneEvent::State::happened);
    }
    return true;
  }
  script->keep.clear();
  script->steps.clear();
  std::unique_ptr<core::Script> done;
  {
    const std::lock_guard lock(queue_mutex_);
    done = std::move(queue_.front());
    queue_.pop_front();
    at_ = 0;
    if (queue_.empty()) changed_.notify_all();
  }
  return true;
}

void CpuLane::run(const core::Run& step, Report& report) {
  ChannelFlags& flags = *parts_.flags;
  const FloatDefaults float_defaults;
  if (core::may_proceed(flags)) {
    KernelContext context{*parts_.team, step.num_sms > 0 ? step.num_sms : parts_.team->size(), parts_.own_page, now_ns()};
    std::visit([&](const auto& kernel) { run_kernel(kernel, context); }, step.kernel);
  } else {
    report.failure = flags.own();
  }
  if (step.stamp != core::Stamp::none) report.stamps[static_cast<int>(step.stamp)] = now_ns();
  core::finish_step(flags, step.tail);
}

void CpuLane::depend(const core::Depend& step) {
  static_cast<const CpuEvent&>(*step.event).sleep();
  if (!step.guards_block || step.event->state() != engine::LaneEvent::State::failed) return;
  Status status;
  status.failed = 1;
  status.operation = parts_.flags->operation();
  status.cause = core::Cause::block_lost;
  status.by = parts_.flags->rank();
  if (!parts_.flags->own().failed) parts_.flags->give_up(status);
}

}  // namespace sluice::cpu
