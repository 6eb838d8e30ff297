// How the host starts each kernel of core/kernels.h on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "core/kernels.h"
#include "engine/cuda/step.h"

namespace sluice::cuda {

// Memory that counts use, of one channel, on the device.
struct Scratch {
  std::int32_t* counts = nullptr;
  std::int64_t elements = 0;
};

struct Launch {
  cudaStream_t stream = nullptr;
  int num_sms = 1;  // blocks at most
  Scratch scratch;
  // Of this rank, for sizes that the host decides by.
  const core::Topology* topology = nullptr;
  const core::AgreeArgs* agree = nullptr;  // what a kernel that moves or sums rows does before, if it was not done
  bool follows = false;  // nothing lies in the stream between this kernel and the one of ours before

  // Of the next kernel of a step.
  Launch next() const {
    Launch how = *this;
    how.follows = true;
    return how;
  }
};

// What goes as one step: publish, the plan of a dispatch that makes a route, and with one rank agree behind it.
struct Opening {
  const core::PlanArgs* plan = nullptr;
  const core::PublishArgs* publish = nullptr;
  const core::AgreeArgs* agree = nullptr;
};

// Elements of scratch for R + E columns: enough units that a count takes microseconds, within 8 MB.
std::int64_t scratch_elements(int ranks, int experts);

// Loads all kernels and lets them have their shared memory, on the current device: the first launch of a
// kernel that is not loaded would wait for a stream that waits. Throws SystemError.
void prepare_kernels();
cudaError_t prepare_plan();
cudaError_t prepare_exchange();
cudaError_t prepare_move();
cudaError_t prepare_finish();
cudaError_t prepare_combine();
// An empty kernel.
cudaError_t launch_nothing(cudaStream_t stream);
// Loads one kernel, which may take so much dynamic shared memory.
cudaError_t prepare(const void* kernel, std::int64_t shared_bytes);
template <class... Kernels>
cudaError_t prepare_all(std::int64_t shared_bytes, Kernels... kernels) {
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? prepare(reinterpret_cast<const void*>(kernels), shared_bytes) : error), ...);
  return error;
}

// One operation step: one kernel or a few, the last of which runs the tail. They return what cudaLaunchKernel
// returned first, if it failed.
cudaError_t launch(const Opening& opening, const StepContext& step, const Launch& how);
cudaError_t launch_with_plan(const Opening& opening, const StepContext& step, const Launch& how);
cudaError_t launch(const core::AgreeArgs& args, const StepContext& step, const Launch& how);
cudaError_t launch(const core::MoveArgs& args, const StepContext& step, const Launch& how);
cudaError_t launch(const core::FinishArgs& args, const StepContext& step, const Launch& how);
cudaError_t launch(const core::GatherArgs& args, const StepContext& step, const Launch& how);
cudaError_t launch(const core::ReduceArgs& args, const StepContext& step, const Launch& how);
cudaError_t launch(const core::SealArgs& args, const StepContext& step, const Launch& how);
// The channel fails if the one at `other`, of this rank, has: its block must not be used.
cudaError_t launch_guard(const DeviceChannel* other, const StepContext& step, const Launch& how);

}  // namespace sluice::cuda
