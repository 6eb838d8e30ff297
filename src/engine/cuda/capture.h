// Graphs: what a thread must do to make CUDA calls while some thread captures, and who keeps a captured script.
#pragma once

#include <memory>

#include <cuda_runtime_api.h>

#include "core/script.h"

namespace sluice::cuda {

// A capture in global mode forbids other threads of the process what might disturb it. None of our calls does.
class UntouchedCaptures {
 public:
  UntouchedCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~UntouchedCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  UntouchedCaptures(const UntouchedCaptures&) = delete;
  UntouchedCaptures& operator=(const UntouchedCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The capture that a stream is in: its id and graph; 0 and null when it is in none.
struct Capture {
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
};
Capture capture_of(cudaStream_t stream);

// The graph keeps the script, and its memory, until the graph and all that was made from it are destroyed.
cudaError_t keep_in_graph(cudaGraph_t graph, std::unique_ptr<core::Script> script);
// Destroys the scripts of graphs that are gone: a graph ends where no CUDA call may be made.
void bury_scripts();

}  // namespace sluice::cuda
