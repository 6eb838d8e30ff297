// The kernels around OPEN: publish, agree, seal. One block each.
#include <cuda_runtime.h>

#include "engine/cuda/agree.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/publish.cuh"
#include "engine/cuda/start.cuh"

namespace sluice::cuda {

using namespace core;

namespace {

__global__ void __launch_bounds__(agree_threads, 1)
publish_kernel(const __grid_constant__ PublishArgs args, const __grid_constant__ StepContext step) {
  publish(args, step, may_work(step));
  end_step(step);
}

// With one rank nothing lies between the two.
__global__ void __launch_bounds__(agree_threads, 1)
publish_and_agree_kernel(const __grid_constant__ PublishArgs published, const __grid_constant__ AgreeArgs agreed,
                         const __grid_constant__ StepContext step) {
  const bool well = may_work(step);
  publish(published, step, well);
  __syncthreads();
  if (well) agree_together(agreed, *step.channel);
  end_step(step);
}

__global__ void __launch_bounds__(agree_threads, 1) agree_kernel(const __grid_constant__ AgreeArgs args, const __grid_constant__ StepContext step) {
  if (may_work(step)) agree_together(args, *step.channel);
  end_step(step);
}

__global__ void nothing_kernel() {}

__global__ void seal_kernel(const __grid_constant__ StepContext step) {
  may_work(step);
  end_step(step);
}

__global__ void guard_kernel(const DeviceChannel* other, const __grid_constant__ StepContext step) {
  if (may_work(step) && threadIdx.x == 0 && load_relaxed(&other->failed) != 0) {
    Status status;
    status.failed = 1;
    status.operation = step.operation;
    status.kind = step.kind;
    status.cause = Cause::block_lost;
    status.by = step.rank;
    DeviceFlags(step).fail(status);
  }
  end_step(step);
}

}  // namespace

cudaError_t prepare_exchange() { return prepare_all(0, publish_kernel, agree_kernel, publish_and_agree_kernel, nothing_kernel, seal_kernel, guard_kernel); }

cudaError_t launch_nothing(cudaStream_t stream) {
  Launch how;
  how.stream = stream;
  return start(nothing_kernel, {}, how);
}

cudaError_t launch(const Opening& opening, const StepContext& step, const Launch& how) {
  if (opening.plan) return launch_with_plan(opening, step, how);
  if (!opening.agree) return start(publish_kernel, {1, agree_threads, 0}, how, *opening.publish, step);
  return start(publish_and_agree_kernel, {1, agree_threads, 0}, how, *opening.publish, *opening.agree, step);
}

cudaError_t launch(const AgreeArgs& args, const StepContext& step, const Launch& how) {
  return start(agree_kernel, {1, agree_threads, 0}, how, args, step);
}

cudaError_t launch(const SealArgs&, const StepContext& step, const Launch& how) {
  return start(seal_kernel, {1, 32, 0}, how, step);
}

cudaError_t launch_guard(const DeviceChannel* other, const StepContext& step, const Launch& how) {
  return start(guard_kernel, {1, 32, 0}, how, other, step);
}

}  // namespace sluice::cuda
