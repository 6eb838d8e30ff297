#include "engine/cuda/lane.h"

#include <algorithm>
#include <utility>

#include "engine/cuda/capture.h"
#include "engine/leaving.h"

namespace sluice::cuda {

using core::Stage;

namespace {

// Whether each block of the kernel behind agree can do that for itself: it needs nothing of the experts.
bool goes_with_agree(const core::AgreeArgs& agree, const core::Step* next) {
  const auto* const run = next != nullptr ? std::get_if<core::Run>(next) : nullptr;
  if (run == nullptr || (agree.makes_route && agree.route.layout != Layout::packed)) return false;
  return std::holds_alternative<core::MoveArgs>(run->kernel) || std::holds_alternative<core::ReduceArgs>(run->kernel);
}

Phase phase_of(Stage stage) { return stage == Stage::open ? Phase::awaits_open : Phase::awaits_close; }

}  // namespace

CudaLane::CudaLane(Parts parts)
    : parts_(std::move(parts)), own_stream_(parts_.device, parts_.topology.rank, parts_.form == AwaitForm::stream && parts_.topology.ranks > 1 ? StreamUse::waits : StreamUse::works),
      turn_(queueing(parts_.device), std::defer_lock), stream_(own_stream_) {
  if (parts_.form == AwaitForm::host) thread_ = std::thread([this] { serve(); });
}

CudaLane::~CudaLane() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CudaLane::submit(std::unique_ptr<core::Script> script) {
  const CurrentDevice current(parts_.device);
  const UntouchedCaptures beside;
  bury_scripts();
  if (script->caller.captured) return capture(std::move(script));
  if (parts_.form == AwaitForm::stream) return run(std::move(script));
  if (script->caller.runs) return submit_in_order_of_stream(std::move(script));
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.size() < most_under_way; });
    queue_.push_back(std::move(script));
  }
  changed_.notify_all();
}

// The thread would come too late to the caller's stream: the own lane runs the operation, between what the stream
// holds now and what it is given from now on.
void CudaLane::submit_in_order_of_stream(std::unique_ptr<core::Script> script) {
  const auto stream = static_cast<cudaStream_t>(script->caller.stream);
  const auto before = std::make_shared<CudaEvent>(parts_.events), after = std::make_shared<CudaEvent>(parts_.events);
  {
    const std::lock_guard turn(queueing(parts_.device));
    check(before->record(stream), "cudaEventRecord", parts_.topology.rank);
  }
  script->steps.insert(script->steps.begin(), core::Depend{before});
  script->steps.emplace_back(core::Record{after});
  script->caller.runs = false;
  submit(std::move(script));
  after->stream_wait(stream);
}

// Into the graph of the caller's stream. What fails here fails the capture, not the channel.
void CudaLane::capture(std::unique_ptr<core::Script> script) {
  const Capture graph = capture_of(static_cast<cudaStream_t>(script->caller.stream));
  stream_ = static_cast<cudaStream_t>(script->caller.stream);
  capture_ = graph.id;
  capture_error_ = cudaSuccess;
  run_steps(*script);
  capture_ = 0;
  check(capture_error_, "capturing an operation", parts_.topology.rank);
  check(keep_in_graph(graph.graph, std::move(script)), "cudaGraphRetainUserObject", parts_.topology.rank);
}

void CudaLane::serve() {
  cudaSetDevice(parts_.device);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::unique_ptr<core::Script> script = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    run(std::move(script));
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void CudaLane::drain() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
  }
  const CurrentDevice current(parts_.device);
  const UntouchedCaptures beside;
  for (const InFlight& running : in_flight_) running.last->wait(std::chrono::milliseconds(-1));
  cudaStreamSynchronize(own_stream_);
  const engine::LettingGo letting_go;
  in_flight_.clear();
}

void CudaLane::run(std::unique_ptr<core::Script> script) {
  wait_for_room();
  const std::lock_guard turn(turn_);
  ++operation_;
  stream_ = script->caller.runs ? static_cast<cudaStream_t>(script->caller.stream) : own_stream_;
  // A handle of the caller may name another stream than before: one made since, or the one of another thread
  // (cudaStreamPerThread).
  if (last_ && (script->caller.runs || stream_ != last_stream_)) note(last_->wait_in(stream_));
  last_ = run_steps(*script);
  last_stream_ = stream_;
  in_flight_.push_back({std::move(script), last_});
}

// A wait of the host, during which others queue.
template <class Wait>
void CudaLane::beside_others(Wait&& wait) {
  const bool has_turn = turn_.owns_lock();  // not while a graph is captured
  if (has_turn) turn_.unlock();
  wait();
  if (has_turn) turn_.lock();
}

// Returns the event of its end.
std::shared_ptr<CudaEvent> CudaLane::run_steps(core::Script& script) {
  kind_ = script.kind;
  signalled_close_ = false;
  follows_ = false;
  point_ = 0;
  std::shared_ptr<CudaEvent> last;
  const auto record = [&](int index) {
    follows_ = false;
    note(last->record(stream_, {.report = script.report, .step = index, .channel = parts_.channel,
                                .reached = &parts_.flags->reached, .number = point_, .keep = parts_.keep, .capture = capture_}));
  };
  for (int index = 0; const core::Step& step : script.steps) {
    if (const auto* const kernel = std::get_if<core::Run>(&step)) run(*kernel, script, index);
    if (const auto* const wait = std::get_if<core::Await>(&step)) await(*wait);
    if (const auto* const dependency = std::get_if<core::Depend>(&step)) depend(*dependency, script, index);
    last = nullptr;
    if (const auto* const point = std::get_if<core::Record>(&step)) {
      last = std::static_pointer_cast<CudaEvent>(point->event);
      record(index);
    }
    ++index;
  }
  if (!last && capture_ == 0) {
    last = std::make_shared<CudaEvent>(parts_.events);
    record(static_cast<int>(script.steps.size()));
  }
  return last;
}

void CudaLane::forget_finished() {
  const engine::LettingGo letting_go;
  while (!in_flight_.empty() && in_flight_.front().last->state() != engine::LaneEvent::State::pending) in_flight_.pop_front();
}

void CudaLane::wait_for_room() {
  forget_finished();
  while (in_flight_.size() >= most_under_way) {
    in_flight_.front().last->wait(std::chrono::milliseconds(-1));
    forget_finished();
  }
}

StepContext CudaLane::context_of(const core::Run& step, const core::Script& script, int index) {
  StepContext context;
  context.channel = parts_.channel;
  context.shared = parts_.shared;
  context.report = script.report.get();
  context.tail = step.tail;
  context.kind = script.kind;
  context.stamp = step.stamp;
  context.rank = parts_.topology.rank;
  context.ranks = parts_.topology.ranks;
  context.index = index;
  context.awaited = awaited_;
  context.point = point_;
  context.operation = operation_;
  if (step.tail.signals) context.phase = static_cast<std::int32_t>(phase_of(step.tail.signal));
  else if (awaited_) context.phase = static_cast<std::int32_t>(awaited_stage_ == Stage::open ? Phase::moves : Phase::idle);
  return context;
}

// The host is told of kernels behind which an event is recorded.
void CudaLane::begin_point(const core::Script& script, int index) {
  const auto next = static_cast<std::size_t>(index) + 1;
  const bool told = next == script.steps.size() || std::holds_alternative<core::Record>(script.steps[next]);
  point_ = told && capture_ == 0 ? ++points_ : 0;
}

void CudaLane::run(const core::Run& step, const core::Script& script, int index) {
  const std::size_t next = static_cast<std::size_t>(index) + 1;
  if (goes_later(step, next < script.steps.size() ? &script.steps[next] : nullptr)) return;
  Launch how = launch_of(step);
  how.agree = std::exchange(agree_, nullptr);
  begin_point(script, index);
  const StepContext context = context_of(step, script, index);
  awaited_ = false;
  if (step.tail.signals && step.tail.signal == Stage::close) signalled_close_ = true;
  if (opening_.publish) {
    note(launch(std::exchange(opening_, {}), context, how));
  } else {
    note(std::visit(
        [&](const auto& kernel) {
          if constexpr (requires { launch(kernel, context, how); }) return launch(kernel, context, how);
          else return cudaErrorNotSupported;  // it goes in an opening
        },
        step.kernel));
  }
  follows_ = true;
}

// Whether the step goes with the one behind it, or is not needed. With one rank nothing is awaited, and a seal has
// nothing to say.
bool CudaLane::goes_later(const core::Run& step, const core::Step* next) {
  const bool alone = parts_.topology.ranks == 1;
  if (const auto* const agree = std::get_if<core::AgreeArgs>(&step.kernel); agree && !alone && goes_with_agree(*agree, next)) {
    agree_ = agree;
    return true;
  }
  if (const auto* const plan = std::get_if<core::PlanArgs>(&step.kernel)) {
    opening_.plan = plan;
    return true;
  }
  if (const auto* const publish = std::get_if<core::PublishArgs>(&step.kernel)) opening_.publish = publish;
  if (const auto* const agree = std::get_if<core::AgreeArgs>(&step.kernel); agree && alone) opening_.agree = agree;
  return alone && (std::holds_alternative<core::PublishArgs>(step.kernel) || std::holds_alternative<core::SealArgs>(step.kernel));
}

Launch CudaLane::launch_of(const core::Run& step) const {
  Launch how;
  how.stream = stream_;
  how.num_sms = std::min(step.num_sms > 0 ? step.num_sms : parts_.num_sms, parts_.most_sms);
  how.scratch = parts_.scratch;
  how.topology = &parts_.topology;
  how.follows = follows_;
  return how;
}

// The CLOSE of the operation before was awaited at its end: every script ends so.
void CudaLane::await(const core::Await& step) {
  if (step.stage == Stage::close && !signalled_close_) return;
  if (parts_.topology.ranks == 1) return;
  follows_ = false;
  point_ = 0;
  if (parts_.form == AwaitForm::stream) await_in_stream(step.stage);
  else await_on_host(step.stage);
  awaited_ = true;
  awaited_stage_ = step.stage;
}

void CudaLane::await_in_stream(Stage stage) {
  CUstreamBatchMemOpParams waits[flag_words] = {};
  const int words = words_of(parts_.topology.ranks);
  for (int w = 0; w < words; ++w) {
    waits[w].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    waits[w].waitValue.address = reinterpret_cast<CUdeviceptr>(parts_.flags->flags[static_cast<int>(stage)] + w);
    waits[w].waitValue.value64 = all_arrived;
    waits[w].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  }
  const CUresult error = driver()->batch_mem_op(stream_, static_cast<unsigned>(words), waits, 0);
  if (error != CUDA_SUCCESS) note(cudaErrorUnknown);
}

// The flags of a stage belong to this operation only once the tail that announces the wait has run: until
// then they are those of the operation before.
void CudaLane::await_on_host(Stage stage) {
  const HostChannel& host = *parts_.host;
  const auto reached = [&] {
    if (host.given_up() || host.failure().failed) return true;
    return host.operation() == operation_ && host.phase() == phase_of(stage) && host.arrived(stage);
  };
  // A kernel that broke announces nothing, and the watchdog gives up only for a lane that has announced its wait: the
  // driver is asked now and then.
  constexpr std::chrono::milliseconds now_and_then{10};
  const auto began = std::chrono::steady_clock::now();
  auto asked = began;
  beside_others([&] {
    while (!reached() && error_ == cudaSuccess) {
      pause_since(began);
      if (const auto now = std::chrono::steady_clock::now(); now - asked > now_and_then) {
        asked = now;
        const UntouchedCaptures beside;
        if (const cudaError_t error = cudaStreamQuery(stream_); error != cudaErrorNotReady) note(error);
      }
    }
  });
}

void CudaLane::depend(const core::Depend& step, const core::Script& script, int index) {
  if (step.event->state() == engine::LaneEvent::State::happened) return;
  follows_ = false;
  point_ = 0;
  const auto* const event = dynamic_cast<const CudaEvent*>(step.event.get());
  if (event == nullptr) return beside_others([&] { step.event->wait(std::chrono::milliseconds(-1)); });  // of another engine
  // The caller's streams order the runs of a graph and what is outside of it.
  if (event->captured() && event->capture() != capture_) return;
  beside_others([&] { event->wait_until_recorded(); });
  if (capture_ != 0 && !event->captured()) event->wait(std::chrono::milliseconds(-1));
  else note(event->wait_in(stream_));
  if (!step.guards_block || event->channel() == nullptr || event->channel() == parts_.channel) return;
  StepContext context = context_of(core::Run{core::SealArgs{}}, script, index);
  context.phase = StepContext::same_phase;
  note(launch_guard(event->channel(), context, launch_of({})));
}

// A step that could not be queued leaves the lane without its tail: everybody is told at once.
void CudaLane::note(cudaError_t error) {
  if (capture_ != 0) {
    if (capture_error_ == cudaSuccess) capture_error_ = error;
    return;
  }
  if (error == cudaSuccess) return;
  point_ = 0;  // what was not queued tells nothing
  if (error_ != cudaSuccess) return;
  error_ = error;
  core::Status status;
  status.failed = 1;
  status.cause = core::Cause::device;
  status.by = parts_.topology.rank;
  status.kind = kind_;
  // The one that the device has come to: what is queued before the step that failed does no work any more either, and
  // the host may be many operations ahead.
  status.operation = std::clamp<std::int64_t>(parts_.host->operation(), 1, operation_);
  status.code = static_cast<std::int64_t>(error);
  parts_.host->break_off(status);
}

}  // namespace sluice::cuda
