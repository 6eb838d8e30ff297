#include "core/communicator_state.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <sluice/errors.h>

#include "core/argument_check.h"

namespace sluice::core {

// In a forked child the threads that would run the operation do not exist.
void EventState::require_own_process() const {
  if (context_.process == 0 || happened() || getpid() == context_.process) return;
  throw ArgumentError(fmt::format("{} on rank {} of {}: this is a forked copy of an event that had not happened; wait for it in "
                                  "the process that made the call", name_of(context_.kind), context_.rank, context_.ranks),
                      context_.rank);
}

bool EventState::wait(std::chrono::milliseconds timeout) const {
  require_own_process();
  if (event_->captured()) {
    throw ArgumentError(fmt::format("{} on rank {} of {}: the call was captured into a graph, so the host cannot wait for "
                                    "its event; wait for the stream in which the graph runs",
                                    name_of(context_.kind), context_.rank, context_.ranks),
                        context_.rank);
  }
  if (!event_->wait(timeout)) return false;
  const bool failed = event_->state() == engine::LaneEvent::State::failed;
  const std::exception_ptr error = error_of(*report_, failed, context_);
  if (!error) return true;
  told_ = true;
  std::rethrow_exception(error);
}

void EventState::throw_untold_fault() const {
  if (report_->fault.problem != IdProblem::none && !told_) wait(std::chrono::milliseconds(0));
}

void depend_on(Common& common, const HeldBlock& block) {
  for (const auto& event : block.after()) {
    const bool there = std::any_of(common.first.begin(), common.first.end(), [&](const Depend& other) { return other.event == event; });
    if (!there) common.first.push_back({event, true});
  }
}

PublishArgs publish_args(const engine::WindowView& window, int channel, const Digest& digest, Report* report) {
  PublishArgs publish;
  publish.topology = window.topology;
  publish.addresses = window.addresses;
  publish.page = window.page;
  publish.channel = channel;
  publish.record.digest = digest;
  publish.report = report;
  return publish;
}

AgreeArgs agree_args(const engine::WindowView& window, int channel, OperationKind kind, Report* report) {
  AgreeArgs agree;
  agree.topology = window.topology;
  agree.addresses = window.addresses;
  agree.page = window.page;
  agree.window_bytes = window.arena_offset + window.arena_bytes;
  agree.channel = channel;
  agree.kind = kind;
  agree.report = report;
  return agree;
}

CommunicatorState::Admission::Admission(CommunicatorState& state, int channel, const std::string& where) {
  const ArgumentCheck check(where, state.config_.topology.rank);
  state.require_own_process(check);
  check.between("channel", channel, 0, state.config_.options.channels - 1);
  Channel* const asked = state.channels_[static_cast<std::size_t>(channel)].get();
  if (asked->busy.exchange(true, std::memory_order_acquire)) {
    check.refuse(fmt::format("another host thread is inside a call on channel {}; calls on one channel must not overlap",
                             channel));
  }
  channel_ = asked;
}

CommunicatorState::CommunicatorState(Config config, std::vector<int> nodes, std::unique_ptr<engine::Engine> engine, TraceRing traced)
    : config_(std::move(config)), nodes_(std::move(nodes)), traced_(traced), engine_(std::move(engine)),
      memory_(std::make_shared<Memory>(engine_->window())) {
  for (const char* const call : {"count", name_of(OperationKind::dispatch), name_of(OperationKind::combine)}) {
    where_.push_back(fmt::format("{} on rank {} of {}", call, config_.topology.rank, config_.topology.ranks));
  }
  for (int c = 0; c < config_.options.channels; ++c) channels_.push_back(std::make_unique<Channel>());
  log(LogLevel::info, fmt::format("communicator on rank {} of {}: engine {}, {} channels, window of {} bytes",
                                  config_.topology.rank, config_.topology.ranks, config_.options.engine, config_.options.channels,
                                  config_.size.window_bytes));
}

Context CommunicatorState::context(OperationKind kind, int channel, const RouteState* uses) const {
  Context about{kind, config_.topology.rank, config_.topology.ranks, channel, engine_->device_error(), process_};
  if (!uses) return about;
  about.made = uses->report;
  about.made_on = uses->channel;
  return about;
}

void CommunicatorState::require_own_process(const ArgumentCheck& check) const {
  check.require(getpid() == process_, "this is a forked copy of a communicator, without its threads and windows; make a new "
                                      "group and communicator in the new process");
}

void CommunicatorState::set_deadline_ms(int deadline_ms) {
  require_own_process(ArgumentCheck("set_deadline_ms", config_.topology.rank));
  engine_->set_deadline_ms(deadline_ms);
}

std::shared_ptr<engine::LaneEvent> CommunicatorState::next_event(int channel) {
  auto event = engine_->make_event();
  event->order = {channel, ++channels_[static_cast<std::size_t>(channel)]->events};
  return event;
}

void CommunicatorState::throw_earlier_fault(int channel) {
  auto& checking = channels_[static_cast<std::size_t>(channel)]->checking;
  for (auto it = checking.begin(); it != checking.end();) {
    if (!(*it)->happened()) {
      ++it;
      continue;
    }
    const std::shared_ptr<EventState> done = *it;
    it = checking.erase(it);
    try {
      done->throw_untold_fault();
    } catch (const ArgumentError& error) {
      throw ArgumentError(fmt::format("an earlier call, heard of now: {}", error.what()), error.rank());
    }
  }
}

void CommunicatorState::check_route(const Route& route, const std::string& where) const {
  if (!route.valid() || route.state()->block->lies_in(*memory_)) return;
  ArgumentCheck(where, config_.topology.rank).refuse("the route was made by another communicator");
}

// A capture throws before anything is in the graph: a refusal tells the peers what its graph would only tell them
// when it runs.
Caller CommunicatorState::caller_of(void* stream, RunOn run_on, const std::string& where, bool exact) const {
  Caller caller{.stream = stream, .captured = engine_->captures(stream)};
  const bool has_streams = engine_->window().event_on != nullptr;
  caller.runs = caller.captured || (has_streams && run_on == RunOn::callers_stream);
  if (caller.captured && exact) {
    ArgumentCheck(where, config_.topology.rank).refuse("counts = exact brings counts to the host, which a captured call "
                                                       "cannot wait for; use bounded");
  }
  return caller;
}

void CommunicatorState::tell_refusal(OperationKind kind, int channel, const std::string& reason, Events events) {
  const std::shared_ptr<Report> report = engine_->make_report();
  report->trace = trace_call(traced_, channel);
  RefusalParts parts;
  parts.kind = kind;
  parts.common.report = report;
  parts.publish = publish_args(engine_->window(), channel, Digest{}, report.get());
  ControlRecord& record = parts.publish.record;
  record.refusal = Refusal::call;
  std::memcpy(record.reason, reason.data(), reason.size());
  parts.agree = agree_args(engine_->window(), channel, kind, report.get());
  parts.events = std::move(events);
  engine_->lane(channel).submit(refusal_script(std::move(parts)));
}

void CommunicatorState::refuse(OperationKind kind, const std::string& where, int channel, const Caller& caller, Events events) {
  const auto tell = [&](std::string reason) {
    if (reason.size() >= reason_bytes) reason = reason.substr(0, reason_bytes - 4) + "...";
    if (!caller.captured) tell_refusal(kind, channel, reason, std::move(events));
    log(LogLevel::info, reason);
    return reason;
  };
  try {
    throw;
  } catch (const CapacityError& error) {
    throw CapacityError(tell(where + ": " + error.what()), config_.topology.rank);
  } catch (const Error& error) {
    tell(error.what());
    throw;
  } catch (const std::bad_alloc&) {
    throw SystemError(tell(where + no_memory_left), config_.topology.rank);
  }
}

void CommunicatorState::log(LogLevel level, const std::string& message) const {
  if (config_.options.log && level >= config_.options.log_level) config_.options.log(level, message);
}

void CommunicatorState::throw_if_failed(OperationKind kind, int channel) const {
  const Status failure = engine_->lane(channel).failure();
  if (!failure.failed) return;
  const std::string message = sentence(failure, context(kind, channel));
  log(LogLevel::warning, message);
  throw PeerError(message, config_.topology.rank);
}

void CommunicatorState::used_on(const TensorView& view, void* stream) {
  if (getpid() != process_) return;
  if (const auto block = view.data ? memory_->block_of(view.data) : nullptr) block->used_on(stream);
}

TensorView CommunicatorState::allocate(std::int64_t rows, std::int64_t row_bytes, DataType dtype) {
  const std::string call = fmt::format("allocate on rank {} of {}", config_.topology.rank, config_.topology.ranks);
  const ArgumentCheck check(call, config_.topology.rank);
  require_own_process(check);
  check.between("rows", rows, 0, limits::elements);
  check.between("row_bytes", row_bytes, 1, limits::row_bytes);
  if (row_bytes % limits::row_bytes_multiple != 0) {
    check.refuse(fmt::format("row_bytes = {} is not a multiple of {}", row_bytes, limits::row_bytes_multiple));
  }
  check.choice("dtype", dtype, DataType::int64);
  std::shared_ptr<HeldBlock> block;
  try {
    block = memory_->allocate(rows * row_bytes, Owner::input, Arena::End::low);
  } catch (const CapacityError& error) {
    throw CapacityError(call + ": " + error.what(), config_.topology.rank);
  }
  for (const auto& event : block->after()) {
    event->wait(std::chrono::milliseconds(-1));
    if (event->state() == engine::LaneEvent::State::failed) {
      throw PeerError(call + ": the memory came from an operation that has failed; make a new communicator",
                      config_.topology.rank);
    }
  }
  TensorView view(block->data(), dtype, rows, row_bytes / size_of(dtype));
  view.owner = block;
  return view;
}

// A graph keeps what it uses: it can run again.
void CommunicatorState::use_until(const std::shared_ptr<HeldBlock>& block, const std::shared_ptr<engine::LaneEvent>& event,
                                  Common& common) {
  if (common.caller.captured) common.keep.push_back(block);
  else block->used_until(event);
}

// Views into the arena are protected by the event; anything else by keeping its owner, if it has one. An owner that
// stores a null pointer (a deleter on its own) counts too, and is false as a condition.
void CommunicatorState::use_until(const ConstTensorView& view, const std::shared_ptr<engine::LaneEvent>& event,
                                  Common& common) {
  if (view.data && memory_->contains(view.data)) {
    if (const auto block = memory_->block_of(view.data)) use_until(block, event, common);
  } else if (view.owner.use_count() != 0) {
    common.keep.push_back(view.owner);
  }
}

}  // namespace sluice::core
