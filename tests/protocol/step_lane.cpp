// How a lane of the step-driven engine does one step.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "engine/cpu/kernels.h"
#include "protocol/step_engine.h"

namespace sluice::protocol {

using core::Stage;
using core::Status;
using engine::LaneEvent;

StepLane::StepLane(StepWorld& world, int rank, int channel, StepFlags* flags)
    : world_(world),
      rank_(rank),
      channel_(channel),
      process_(rank * world.shape().channels + channel),
      flags_(flags) {}

int StepLane::ranks() const { return world_.shape().ranks; }
std::int64_t StepLane::operation() const {
  const auto at = static_cast<std::size_t>(pc());
  return at < numbers_.size() ? numbers_[at] : static_cast<std::int64_t>(scripts_.size());
}
int StepLane::pc() const { return world_.machine().pc(process_); }

void StepLane::submit(std::unique_ptr<core::Script> script) {
  if (world_.mutation().edit) world_.mutation().edit(*script, rank_);
  scripts_.push_back(std::move(script));
  for (std::size_t i = 0; i < scripts_.back()->steps.size(); ++i) {
    steps_.push_back({scripts_.back().get(), i});
    numbers_.push_back(static_cast<std::int64_t>(scripts_.size()));
  }
}

std::uint32_t StepLane::flag_at(Stage stage, int peer) const {
  if (world_.mutation().one_flag_for_both_stages) stage = Stage::open;
  return world_.machine().offset_of(&flags_->flag[static_cast<int>(stage)][peer]);
}

int StepLane::first_missing(Stage stage) const {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (world_.machine().seen_by(process_, flag_at(stage, peer)) == 0) return peer;
  }
  return -1;
}

int StepLane::first_telling() const {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank_ && core::concerns(*this, flags_->told[peer])) return peer;
  }
  return -1;
}

bool StepLane::can_step() const {
  if (done()) return false;
  const core::Step& step = steps_[static_cast<std::size_t>(pc())].step();
  if (const auto* const await = std::get_if<core::Await>(&step))
    return first_missing(await->stage) < 0 || first_telling() >= 0;
  if (const auto* const dependency = std::get_if<core::Depend>(&step)) {
    return (dependency->guards_block && world_.mutation().ignores_block_events) ||
           dependency->event->state() != LaneEvent::State::pending;
  }
  return true;
}

bool StepLane::waits() const {
  if (done()) return false;
  const auto* const await = std::get_if<core::Await>(&steps_[static_cast<std::size_t>(pc())].step());
  return await && first_missing(await->stage) >= 0;
}

void StepLane::step() {
  const LaneStep& at = steps_[static_cast<std::size_t>(pc())];
  const core::Step& step = at.step();
  world_.changed.clear();
  if (world_.mutation().forgets_failure && at.index == 0) world_.machine().set(&flags_->own, Status{});
  if (const auto* const kernel = std::get_if<core::Run>(&step)) run(*kernel, *at.script->report);
  if (const auto* const await = std::get_if<core::Await>(&step)) {
    if (first_missing(await->stage) >= 0) give_up(flags_->told[first_telling()]);
  }
  if (const auto* const dependency = std::get_if<core::Depend>(&step)) depend(*dependency);
  if (const auto* const record = std::get_if<core::Record>(&step)) {
    static_cast<const StepEvent&>(*record->event)
        .happen(own().failed ? LaneEvent::State::failed : LaneEvent::State::happened);
  }
  world_.machine().set_pc(process_, pc() + 1);
}

void StepLane::fail(const Status& status) { world_.machine().set(&flags_->own, status); }

void StepLane::reset(Stage stage) {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank_) continue;
    world_.machine().push(process_, {flag_at(stage, peer), 1, false, true, {std::byte{0}}});
  }
}

void StepLane::tell(int peer, const Status& status) {
  if (flags_->has_told[peer] || world_.mutation().fails_silently) return;
  world_.machine().set(&flags_->has_told[peer], std::uint8_t{1});
  Entry entry;
  entry.at = world_.machine().offset_of(&world_.lane(peer, channel_).flags_->told[rank_]);
  entry.bytes = sizeof status;
  entry.data.resize(sizeof status);
  std::memcpy(entry.data.data(), &status, sizeof status);
  world_.machine().push(process_, std::move(entry));
}

void StepLane::raise(int peer, Stage stage) {
  world_.machine().push(process_,
                        {world_.lane(peer, channel_).flag_at(stage, rank_), 1, true, false, {std::byte{1}}});
}

void StepLane::give_up(const Status& status) {
  fail(status);
  const std::uint8_t set = 1;
  for (const Stage stage : {Stage::open, Stage::close}) {
    for (int peer = 0; peer < ranks(); ++peer) {
      const std::uint32_t at = flag_at(stage, peer);
      world_.machine().forget(process_, at, at + 1);
      world_.machine().write(at, &set, 1);
    }
  }
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank_ && !world_.mutation().status_after_flag) tell(peer, status);
  }
}

void StepLane::give_up() {
  const LaneStep& at = steps_[static_cast<std::size_t>(pc())];
  Status status;
  status.failed = 1;
  status.cause = core::Cause::deadline;
  status.by = rank_;
  status.stage = std::get<core::Await>(at.step()).stage;
  status.waiting_for = first_missing(status.stage);
  status.kind = at.script->kind;
  status.operation = operation();
  give_up(status);
}

void StepLane::depend(const core::Depend& dependency) {
  if (!dependency.guards_block || dependency.event->state() != LaneEvent::State::failed) return;
  if (own().failed || world_.mutation().ignores_failed_blocks) return;
  Status status;
  status.failed = 1;
  status.cause = core::Cause::block_lost;
  status.operation = operation();
  status.by = rank_;
  give_up(status);
}

namespace {

void run_here(const core::Run& run, std::int64_t operation, bool well = true) {
  static cpu::WorkerTeam team(1);  // has no thread and keeps nothing
  alignas(64) static std::byte scratch[cpu::move_scratch_bytes];
  cpu::KernelContext context{team, 1, operation, 0, well, scratch};
  std::visit([&](const auto& kernel) { cpu::run_kernel(kernel, context); }, run.kernel);
}

// Bytes between the members of a verdict hold whatever the stack held.
void clear_padding(core::Report& report) {
  constexpr std::size_t from = offsetof(core::Verdict, refusal) + sizeof(core::Refusal);
  constexpr std::size_t to = offsetof(core::Verdict, fault);
  std::memset(reinterpret_cast<std::byte*>(&report.verdict) + from, 0, to - from);
}

constexpr std::uint32_t scramble = 0xa5c3'96e1u;

}  // namespace

void StepLane::run(const core::Run& run, core::Report& report) {
  Machine& machine = world_.machine();
  const bool well = core::may_proceed(*this);
  if (well || run.always) {
    const bool publishes = std::holds_alternative<core::PublishArgs>(run.kernel);
    const bool moves = std::holds_alternative<core::MoveArgs>(run.kernel);
    // The second time in one script (a mutation) it is the next operation's record that goes out.
    const std::int64_t number = operation() + (publishes && report.operation != 0 ? 1 : 0);
    if (publishes || moves) {
      run_with_remote_stores(run, number, !moves || !world_.mutation().unfenced_rows);
    } else if (std::holds_alternative<core::GatherArgs>(run.kernel)) {
      run_with_late_stores(run, number);
    } else {
      machine.lay(process_);
      run_here(run, number, well);
      clear_padding(report);
      machine.lift();
    }
  }
  if (!well && !report.failure.failed) report.failure = own();
  const StepWorld::Window& window = world_.window(rank_);
  machine.capture(window.base, static_cast<std::size_t>(window.bytes), world_.changed);
  machine.capture(&report,
                  static_cast<std::size_t>(reinterpret_cast<std::byte*>(report.per_expert + 1) -
                                           reinterpret_cast<std::byte*>(&report)),
                  world_.changed);
  finish(run.tail);
}

void StepLane::finish(core::Tail tail) {
  if (world_.mutation().resets_after_signal && tail.resets && tail.signals) {
    core::finish_step(*this, {.resets = false, .signals = true, .reset = tail.reset, .signal = tail.signal});
    tail.signals = false;
  }
  if (world_.mutation().status_after_flag && tail.signals && own().failed) {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer != rank_) raise(peer, tail.signal);
    }
  }
  core::finish_step(*this, tail);
}

// The peers' windows are scrambled for the time of the kernel, so that a store is found even when it
// changes nothing.
void StepLane::run_with_remote_stores(const core::Run& run, std::int64_t number, bool fenced) {
  const auto scramble_peers = [&] {
    for (int r = 0; r < ranks(); ++r) {
      if (r == rank_) continue;
      auto* const words = reinterpret_cast<std::uint32_t*>(world_.window(r).base);
      for (std::int64_t w = 0; w < world_.window(r).bytes / 4; ++w) words[w] ^= scramble;
    }
  };
  scramble_peers();
  run_here(run, number);
  scramble_peers();
  for (int r = 0; r < ranks(); ++r) {
    if (r != rank_) push_differences(r, scramble, fenced);
  }
}

// What peers read of this rank's own memory becomes visible late as well.
void StepLane::run_with_late_stores(const core::Run& run, std::int64_t number) {
  world_.machine().lay(process_);
  run_here(run, number);
  world_.machine().lift();
  push_differences(rank_, 0, true);
}

// Everything in the window of rank r that differs from what is visible goes into the buffer: a whole
// record as one store, the arena in stores of up to 16 bytes.
void StepLane::push_differences(int r, std::uint32_t key, bool fenced) {
  Machine& machine = world_.machine();
  const std::uint32_t base = machine.offset_of(world_.window(r).base);
  auto* const now = reinterpret_cast<std::uint32_t*>(world_.window(r).base);
  const auto* const old = reinterpret_cast<const std::uint32_t*>(machine.visible() + base);
  const auto words = static_cast<std::uint32_t>(world_.window(r).bytes / 4);
  const auto page_words = static_cast<std::uint32_t>(world_.arena_offset() / 4);
  const auto record_words = static_cast<std::uint32_t>(world_.page().record_bytes / 4);
  for (std::uint32_t w = 0; w < words; ++w) {
    if (now[w] == old[w]) continue;
    const std::uint32_t limit = w < page_words ? std::min(w + record_words, page_words) : (w / 4 + 1) * 4;
    std::uint32_t last = w;
    for (std::uint32_t i = w; i < limit; ++i) last = now[i] != old[i] ? i : last;
    Entry entry{base + w * 4, (last - w + 1) * 4, false, false, {}};
    entry.fenced = fenced;
    entry.data.resize(entry.bytes);
    for (std::uint32_t i = w; i <= last; ++i) {
      const std::uint32_t value = now[i] == old[i] ? old[i] : now[i] ^ key;
      std::memcpy(entry.data.data() + (i - w) * 4, &value, 4);
      now[i] = old[i];
    }
    machine.push(process_, std::move(entry));
    w = last;
  }
}

std::string StepLane::describe_step(int index) const {
  constexpr const char* kernels[] = {"plan",   "publish", "agree",  "move",
                                     "finish", "gather",  "reduce", "seal"};
  const LaneStep& at = steps_[static_cast<std::size_t>(index)];
  const auto number =
      std::find_if(scripts_.begin(), scripts_.end(), [&](const auto& s) { return s.get() == at.script; }) -
      scripts_.begin();
  std::string what = "record";
  if (const auto* const kernel = std::get_if<core::Run>(&at.step())) {
    what = kernels[kernel->kernel.index()];
    if (kernel->tail.resets) what += fmt::format(", resets {}", name_of(kernel->tail.reset));
    if (kernel->tail.signals) what += fmt::format(", signals {}", name_of(kernel->tail.signal));
  }
  if (const auto* const await = std::get_if<core::Await>(&at.step()))
    what = fmt::format("await {}", name_of(await->stage));
  if (const auto* const dependency = std::get_if<core::Depend>(&at.step()))
    what = dependency->guards_block ? "depend (block free)" : "depend";
  return fmt::format("rank {} channel {} operation {}: {}", rank_, channel_, number + 1, what);
}

}  // namespace sluice::protocol
