#include "engine/cpu/lane.h"

#include <algorithm>
#include <new>
#include <utility>

#include "boot/signals_blocked.h"
#include "core/status.h"
#include "engine/cpu/float_defaults.h"
#include "engine/cpu/futex.h"
#include "engine/wait.h"

namespace sluice::cpu {

using core::Report;
using engine::now_ns;

namespace {
// An operation of at most so many bytes begins in its caller's thread, which waits for a peer at most
// so long. Measured with T = 1: docs/performance.md.
constexpr std::int64_t brief_bytes = 64 * 1024;
constexpr std::int64_t brief_wait_ns = 10'000;
// What a kernel writes in this rank's own memory, about; rows for peers are counted with their operation.
std::int64_t bytes_written_here(const core::KernelArgs& kernel, const Report& report) {
  if (const auto* const finish = std::get_if<core::FinishArgs>(&kernel)) {
    const bool fans_out = finish->rows != finish->landed || finish->route.layout != Layout::packed;
    const bool padded = finish->route.layout == Layout::padded;
    const std::int64_t room = finish->outputs.capacity * (padded ? finish->topology->local_experts(finish->topology->rank) : 1);
    return (finish->zero_padding ? room : fans_out ? report.rows : 0) * finish->row_bytes;
  }
  const auto* const gather = std::get_if<core::GatherArgs>(&kernel);
  if (!gather || !gather->rows_out || *gather->route.outcome != core::Outcome::go) return 0;
  return gather->route.source_start[gather->route.ranks] * gather->elements * size_of(gather->sum_type);
}

// How often a lane that waits for another lane's event looks whether a peer gave up, or the communicator is being
// destroyed.
constexpr std::chrono::milliseconds look_again{100};
}  // namespace

bool CpuEvent::sleep_until(std::int64_t end_ns) const {
  if (state() != State::pending) return true;
  // Before the word is read again: happen() sees the sleeper, or the sleeper sees what happened.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  bool in_time = true;
  while (in_time && word_.load(std::memory_order_seq_cst) == 0) {
    const std::int64_t left = end_ns < 0 ? -1 : end_ns - now_ns();
    in_time = end_ns < 0 || left > 0;
    if (in_time) futex_wait(word_, 0, left, Shared::no);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return in_time;
}

bool CpuEvent::wait(std::chrono::milliseconds timeout) const {
  if (state() != State::pending) return true;
  // With a limit the caller must not get stuck in a peer's wait.
  if (timeout.count() >= 0) return sleep_until(now_ns() + timeout.count() * 1'000'000);
  if (const auto lane = lane_.lock()) lane->help(*this);
  return sleep_until(-1);
}

void CpuEvent::happen(State state) {
  word_.store(static_cast<std::uint32_t>(state), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(word_, Shared::no);
}

// The scratch is not written here: pages that no operation needs are never taken.
CpuLane::CpuLane(Parts parts)
    : parts_(std::move(parts)), tracer_(*parts_.flags),
      scratch_(new ScratchUnit[static_cast<std::size_t>(parts_.scratch_bytes) / sizeof(ScratchUnit) + 1]) {
  const boot::SignalsBlocked blocked;
  thread_ = std::thread([this] { serve(); });
}

CpuLane::~CpuLane() { stop(); }

void CpuLane::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(queue_mutex_);
    stopping_ = true;
  }
  grown_.notify_all();
  thread_.join();
}

void CpuLane::submit(std::unique_ptr<core::Script> script) {
  for (core::Step& step : script->steps) {
    if (auto* const record = std::get_if<core::Record>(&step)) {
      static_cast<CpuEvent&>(*record->event).belongs_to(weak_from_this());
    }
  }
  const bool brief = script->bytes <= brief_bytes;
  {
    std::unique_lock lock(queue_mutex_);
    if (queued_ >= most_under_way) {
      grown_.notify_one();
      shrunk_.wait(lock, [&] { return queued_ < most_under_way; });
    }
    ++queued_;
    queue_.add(std::move(script));
  }
  if (!brief || !finish_here()) grown_.notify_one();
}

// Waking the lane's thread costs more than a short operation does. True when nothing is left to do.
bool CpuLane::finish_here() {
  std::unique_lock lock(running_, std::try_to_lock);
  if (!lock) return false;
  while (next_step(Patience::none)) {}
  const std::lock_guard queue_lock(queue_mutex_);
  return queue_.empty();
}

bool CpuLane::is_brief(const core::Step& step, const Report& report) const {
  if (const auto* const wait = std::get_if<core::Await>(&step)) {
    return parts_.flags->arrived_soon(wait->stage, std::min(parts_.spin_ns, brief_wait_ns));
  }
  const auto* const dependency = std::get_if<core::Depend>(&step);
  if (dependency) return dependency->event->state() != engine::LaneEvent::State::pending;
  const auto* const kernel = std::get_if<core::Run>(&step);
  return !kernel || bytes_written_here(kernel->kernel, report) <= brief_bytes;
}

void CpuLane::serve() {
  while (true) {
    {
      std::unique_lock lock(queue_mutex_);
      grown_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
    }
    std::unique_lock lock(running_);
    while (next_step(Patience::any)) {}
  }
}

void CpuLane::help(const CpuEvent& event) {
  std::unique_lock lock(running_, std::try_to_lock);
  if (!lock) return;
  while (event.state() == engine::LaneEvent::State::pending && next_step(Patience::any)) {}
}

void CpuLane::drain() {
  std::unique_lock lock(queue_mutex_);
  shrunk_.wait(lock, [&] { return queue_.empty(); });
}

// Runs one step of the first script; false when nothing is queued, or when it would wait and must not. A script leaves the
// queue after its last step.
bool CpuLane::next_step(Patience patience) {
  core::Script* script = nullptr;
  {
    const std::lock_guard lock(queue_mutex_);
    script = queue_.first();
    if (!script) return false;
  }
  // Not what its caller has queued, if a longer operation is before it.
  if (patience == Patience::none && script->bytes > brief_bytes) return false;
  if (!begun_) {
    parts_.flags->begin(script->kind);
    tracer_.begin(script->report->trace);
  }
  begun_ = true;
  if (at_ < script->steps.size()) {
    const core::Step& step = script->steps[at_];
    Report& report = *script->report;
    if (patience == Patience::none && !is_brief(step, report)) return false;
    ++at_;
    try {
      take_step(step, report);
    } catch (const std::bad_alloc&) {
      parts_.flags->give_up(core::Cause::no_memory);
      if (!report.failure.failed) report.failure = parts_.flags->own();
    }
    return true;
  }
  std::unique_ptr<core::Script> ended;
  const std::lock_guard lock(queue_mutex_);
  ended = queue_.take_first();
  if (!ended->keep.empty()) parts_.releaser->let_go(std::move(ended));
  --queued_;
  at_ = 0;
  begun_ = false;
  shrunk_.notify_all();
  return true;
}

void CpuLane::take_step(const core::Step& step, Report& report) {
  if (const auto* const kernel = std::get_if<core::Run>(&step)) run(*kernel, report);
  if (const auto* const wait = std::get_if<core::Await>(&step)) {
    parts_.flags->await(wait->stage, {report.operation == 0, parts_.spin_ns});
    if (wait->stamp == core::Stamp::close_seen) tracer_.closed();
  }
  if (const auto* const dependency = std::get_if<core::Depend>(&step)) depend(*dependency);
  if (const auto* const record = std::get_if<core::Record>(&step)) {
    const bool failed = parts_.flags->own().failed != 0;
    static_cast<CpuEvent&>(*record->event)
        .happen(failed ? engine::LaneEvent::State::failed : engine::LaneEvent::State::happened);
  }
}

void CpuLane::run(const core::Run& step, Report& report) {
  ChannelFlags& flags = *parts_.flags;
  const FloatDefaults float_defaults;
  const int workers = step.num_sms > 0 ? step.num_sms : parts_.team->size();
  KernelContext context{*parts_.team, workers, flags.operation(), now_ns(), core::may_proceed(flags), scratch_[0].bytes};
  const auto kernel = [&] {
    if (context.well || step.always) std::visit([&](const auto& args) { run_kernel(args, context); }, step.kernel);
  };
  try {
    kernel();
  } catch (const std::bad_alloc&) {  // the tail still tells the peers
    parts_.flags->give_up(core::Cause::no_memory);
    context.well = false;
    kernel();
  }
  const bool well = context.well;
  // Once: a host that saw an earlier event of this operation may be reading it.
  if (!well && !report.failure.failed) report.failure = flags.own();
  if (const auto* const agree = std::get_if<core::AgreeArgs>(&step.kernel); agree && well) tracer_.agreed(*agree);
  if (step.stamp == core::Stamp::close_sent) {
    flags.closing_at(now_ns());
    tracer_.moved(context.now_ns, flags.closing_at(), workers);
  }
  if (step.stamp == core::Stamp::end) tracer_.end(report);
  core::finish_step(flags, step.tail);
}

void CpuLane::depend(const core::Depend& step) {
  const bool waits = step.event->state() == engine::LaneEvent::State::pending;
  while (!step.event->wait(look_again)) {
    // The peers may have given up meanwhile.
    if (parts_.flags->leave_now() || !core::may_proceed(*parts_.flags)) return;
  }
  if (waits) tracer_.data_there();
  if (!step.guards_block || step.event->state() != engine::LaneEvent::State::failed) return;
  parts_.flags->give_up(core::Cause::block_lost);
}

}  // namespace sluice::cpu
