// The kernels around OPEN: publish, agree, seal. One block each.
#include <cuda_runtime.h>

#include "engine/cuda/agree.cuh"
#include "engine/cuda/block.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/start.cuh"
#include "engine/cuda/step.cuh"

namespace sluice::cuda {

using namespace core;

namespace {

// By so many threads, of which this one is the `first`th.
__device__ void copy_words(void* to, const void* from, int words, int first, int threads) {
  auto* const out = static_cast<std::uint32_t*>(to);
  const auto* const in = static_cast<const std::uint32_t*>(from);
#pragma unroll 1
  for (int i = first; i < words; i += threads) out[i] = in[i];
}

// By all threads of a block.
__device__ void publish(const PublishArgs& args, const StepContext& step, bool well) {
  constexpr int record_words = sizeof(ControlRecord) / 4;
  __shared__ Raw<ControlRecord> shared;
  copy_words(&shared, &args.record, record_words, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) {
    DeviceChannel& channel = *step.channel;
    const std::int64_t operation = channel.operation + 1;
    channel.operation = operation;
    channel.outcome = Outcome::pending;
    args.report->operation = operation;
    if (well) complete_record(args, operation, now_ns(), shared.get());
  }
  __syncthreads();
  // A warp per rank: the way to each record is a chain of loads.
  const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x) / 32; well && r < step.ranks; r += warps) {
    ControlRecord& at = record_at(args, r);
    copy_words(&at, &shared, record_words, lane_of_thread(), 32);
    copy_words(counts_per_rank(&at), args.sent, counts_to_send(args), lane_of_thread(), 32);
  }
}

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

cudaError_t launch(const PublishArgs& args, const StepContext& step, const Launch& how) {
  return start(publish_kernel, {1, agree_threads, 0}, how, args, step);
}

cudaError_t launch(const PublishArgs& published, const AgreeArgs& agreed, const StepContext& step, const Launch& how) {
  return start(publish_and_agree_kernel, {1, agree_threads, 0}, how, published, agreed, step);
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
