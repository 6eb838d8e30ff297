// Points in a lane, or in a caller's stream, that the host and other streams can wait for.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "core/report.h"
#include "engine/cuda/driver.h"
#include "engine/cuda/shared.h"
#include "engine/engine.h"

namespace sluice::cuda {

// Between two looks of a host that has waited since then: nothing much at first, later a nap.
void pause_since(std::chrono::steady_clock::time_point began);

// CUDA events for reuse: making one costs more than recording it.
class EventPool {
 public:
  explicit EventPool(int device) : device_(device) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  cudaEvent_t take();
  void give_back(cudaEvent_t event);
  int device() const { return device_; }

 private:
  int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class CudaEvent final : public engine::LaneEvent {
 public:
  explicit CudaEvent(std::shared_ptr<EventPool> pool);
  ~CudaEvent() override;

  State state() const override;
  bool wait(std::chrono::milliseconds timeout) const override;
  // `stream` runs what is given to it from now on after this event.
  void stream_wait(void* stream) const override;
  cudaError_t wait_in(cudaStream_t stream) const;

  // Once, in the stream that gets there. `report` of the operation and the step's index tell whether it had
  // failed by then; without a report it cannot fail. `window` holds `channel`.
  cudaError_t record(cudaStream_t stream, std::shared_ptr<core::Report> report, int step, const DeviceChannel* channel,
                     std::shared_ptr<const void> window, unsigned long long capture = 0);
  // Recorded while its stream was captured: part of the graph of that capture, for as long as the graph lives.
  bool captured() const override { return capture_ != 0; }
  unsigned long long capture() const { return capture_; }
  void outlived_its_graph() { settled_.store(State::happened, std::memory_order_release); }

  // The channel whose lane records it; null for a caller's stream.
  const DeviceChannel* channel() const { return channel_; }

 private:
  void wait_until_recorded() const;

  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
  std::shared_ptr<core::Report> report_;
  std::shared_ptr<const void> window_;
  int step_ = 0;
  const DeviceChannel* channel_ = nullptr;
  unsigned long long capture_ = 0;
  std::atomic<bool> recorded_{false};
  mutable std::atomic<State> settled_{State::pending};
};

}  // namespace sluice::cuda
