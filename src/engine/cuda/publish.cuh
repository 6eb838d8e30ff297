// publish: this rank's control record into the page of every rank.
#pragma once

#include "core/agree.h"
#include "engine/cuda/block.cuh"
#include "engine/cuda/step.cuh"

namespace sluice::cuda {

// By so many threads, of which this one is the `first`th.
__device__ inline void copy_words(void* to, const void* from, int words, int first, int threads) {
  auto* const out = static_cast<std::uint32_t*>(to);
  const auto* const in = static_cast<const std::uint32_t*>(from);
#pragma unroll 1
  for (int i = first; i < words; i += threads) out[i] = in[i];
}

// By all threads of a block.
__device__ inline void publish(const core::PublishArgs& args, const StepContext& step, bool well) {
  constexpr int record_words = sizeof(core::ControlRecord) / 4;
  __shared__ Raw<core::ControlRecord> shared;
  copy_words(&shared, &args.record, record_words, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) {
    DeviceChannel& channel = *step.channel;
    const std::int64_t operation = channel.operation + 1;
    channel.operation = operation;
    channel.outcome = core::Outcome::pending;
    args.report->operation = operation;
    if (well) core::complete_record(args, operation, now_ns(), shared.get());
  }
  __syncthreads();
  // A warp per rank: the way to each record is a chain of loads.
  const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x) / 32; well && r < step.ranks; r += warps) {
    core::ControlRecord& at = core::record_at(args, r);
    copy_words(&at, &shared, record_words, lane_of_thread(), 32);
    copy_words(core::counts_per_rank(&at), args.sent, core::counts_to_send(args), lane_of_thread(), 32);
  }
}

}  // namespace sluice::cuda
