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

// What a lane knows of the point at which it records an event. Nothing of it: a caller's stream.
struct LanePoint {
  // Of the operation; with the step's index it tells whether the operation had failed by then.
  std::shared_ptr<core::Report> report;
  int step = 0;
  const DeviceChannel* channel = nullptr;
  // The lane has come here when its tails have brought the word to `number`; 0: nobody tells.
  std::uint64_t* reached = nullptr;
  std::uint64_t number = 0;
  std::shared_ptr<const void> keep;  // what holds `channel` and `reached`
  unsigned long long capture = 0;    // recorded into its graph
};

class CudaEvent final : public engine::LaneEvent {
 public:
  explicit CudaEvent(std::shared_ptr<EventPool> pool);
  ~CudaEvent() override;

  State state() const override;
  bool wait(std::chrono::milliseconds timeout) const override;
  // `stream` runs what is given to it from now on after this event.
  void stream_wait(void* stream) const override;
  // The same for who has the turn to queue, once it is recorded.
  void wait_until_recorded() const;
  cudaError_t wait_in(cudaStream_t stream) const;

  // Once, in the stream that gets there.
  cudaError_t record(cudaStream_t stream, LanePoint at = {});
  // Recorded while its stream was captured: part of the graph of that capture, for as long as the graph lives.
  bool captured() const override { return at_.capture != 0; }
  unsigned long long capture() const { return at_.capture; }
  void outlived_its_graph() { settled_.store(State::happened, std::memory_order_release); }

  // The channel whose lane records it; null for a caller's stream.
  const DeviceChannel* channel() const { return at_.channel; }

 private:
  bool told() const;

  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
  LanePoint at_;
  std::atomic<bool> recorded_{false};
  mutable std::atomic<unsigned> looks_{0};
  mutable std::atomic<State> settled_{State::pending};
};

}  // namespace sluice::cuda
