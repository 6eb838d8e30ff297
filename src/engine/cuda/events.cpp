#include "engine/cuda/events.h"

#include <time.h>

#include "engine/cuda/capture.h"
#include "engine/cuda/streams.h"
#include "engine/wait.h"

namespace sluice::cuda {

using std::chrono::steady_clock;

void pause_since(steady_clock::time_point began) {
  // A nap of 20 us lasts 75 with the usual slack of timers.
  constexpr std::chrono::microseconds a_short_operation{1000};
  if (steady_clock::now() - began < a_short_operation) return engine::relax();
  constexpr timespec nap{0, 20'000};
  nanosleep(&nap, nullptr);
}

EventPool::~EventPool() {
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  const CurrentDevice current(device_);
  const UntouchedCaptures beside;
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate", -1);
  return event;
}

void EventPool::give_back(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

CudaEvent::CudaEvent(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
CudaEvent::~CudaEvent() { pool_->give_back(event_); }

cudaError_t CudaEvent::record(cudaStream_t stream, LanePoint at) {
  at_ = std::move(at);
  const cudaError_t error = cudaEventRecord(event_, stream);
  if (error != cudaSuccess) settled_ = State::failed;
  recorded_.store(true, std::memory_order_release);
  return error;
}

// By the lane's tails, without a call into the driver, which takes microseconds.
bool CudaEvent::told() const {
  return at_.number != 0 && std::atomic_ref(*at_.reached).load(std::memory_order_acquire) >= at_.number;
}

engine::LaneEvent::State CudaEvent::state() const {
  if (!recorded_.load(std::memory_order_acquire)) return State::pending;
  State settled = settled_.load(std::memory_order_acquire);
  if (settled != State::pending || captured()) return settled;
  cudaError_t error = cudaSuccess;
  core::Report* const report = at_.report.get();
  if (!told()) {
    // A kernel that broke tells nothing: the driver is asked now and then.
    constexpr unsigned now_and_then = 64;
    if (at_.number != 0 && looks_.fetch_add(1, std::memory_order_relaxed) % now_and_then != 0) return State::pending;
    const UntouchedCaptures beside;
    error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return State::pending;
  }
  if (error != cudaSuccess && report && report->failure.failed == 0) {
    report->failure.failed = 1;
    report->failure.cause = core::Cause::device;
    report->failure.code = static_cast<std::int64_t>(error);
  }
  const bool failed = error != cudaSuccess || (report && report->failure.failed != 0 && report->failed_at_step <= at_.step);
  settled = failed ? State::failed : State::happened;
  settled_.store(settled, std::memory_order_release);
  return settled;
}

bool CudaEvent::wait(std::chrono::milliseconds timeout) const {
  const auto began = steady_clock::now();
  while (state() == State::pending) {
    if (timeout.count() >= 0 && steady_clock::now() - began >= timeout) return false;
    pause_since(began);
  }
  return true;
}

void CudaEvent::wait_until_recorded() const {
  const auto began = steady_clock::now();
  while (!recorded_.load(std::memory_order_acquire)) pause_since(began);
}

cudaError_t CudaEvent::wait_in(cudaStream_t stream) const {
  const bool past = settled_.load(std::memory_order_acquire) != State::pending || told();
  return past ? cudaSuccess : cudaStreamWaitEvent(stream, event_, 0);
}

void CudaEvent::stream_wait(void* stream) const {
  wait_until_recorded();
  const CurrentDevice current(pool_->device());
  const std::lock_guard turn(queueing(pool_->device()));
  check(wait_in(static_cast<cudaStream_t>(stream)), "cudaStreamWaitEvent", -1);
}

}  // namespace sluice::cuda
