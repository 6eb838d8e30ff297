#include "engine/cuda/capture.h"

#include <mutex>
#include <utility>
#include <vector>

#include "engine/cuda/events.h"

namespace sluice::cuda {

namespace {

class Graveyard {
 public:
  void add(std::unique_ptr<core::Script> script) {
    const std::lock_guard lock(mutex_);
    scripts_.push_back(std::move(script));
  }
  std::vector<std::unique_ptr<core::Script>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(scripts_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<core::Script>> scripts_;
};

// Never destroyed: graphs may outlive everything else.
Graveyard& graveyard() {
  static Graveyard& once = *new Graveyard;
  return once;
}

void end_of_graph(void* script) {
  graveyard().add(std::unique_ptr<core::Script>(static_cast<core::Script*>(script)));
}

}  // namespace

Capture capture_of(cudaStream_t stream) {
  Capture capture;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  // The legacy stream cannot be captured, and fails while another stream that waits for it is.
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &capture.id, &capture.graph);
  return error == cudaSuccess && status == cudaStreamCaptureStatusActive ? capture : Capture{};
}

cudaError_t keep_in_graph(cudaGraph_t graph, std::unique_ptr<core::Script> script) {
  cudaUserObject_t object = nullptr;
  cudaError_t error = cudaUserObjectCreate(&object, script.get(), end_of_graph, 1, cudaUserObjectNoDestructorSync);
  if (error != cudaSuccess) return error;
  static_cast<void>(script.release());
  error = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (error != cudaSuccess) cudaUserObjectRelease(object, 1);
  return error;
}

void bury_scripts() {
  for (const auto& script : graveyard().take()) {
    for (const core::Step& step : script->steps) {
      const auto* const record = std::get_if<core::Record>(&step);
      if (record) static_cast<CudaEvent&>(*record->event).outlived_its_graph();
    }
  }
}

}  // namespace sluice::cuda
