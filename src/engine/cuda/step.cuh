// How every kernel of a lane begins and ends: whether it may work, and the tail that its last block runs on
// behalf of the whole lane (core/status.h).
#pragma once

#include "engine/cuda/ptx.cuh"
#include "engine/cuda/step.h"

namespace sluice::cuda {

// The channel of core/status.h on the device, for one thread at a time.
class DeviceFlags {
 public:
  __device__ explicit DeviceFlags(const StepContext& step) : step_(step), channel_(*step.channel) {}

  __device__ core::Status own() const {
    return load_relaxed(&channel_.failed) != 0 ? channel_.failure : core::Status{};
  }
  __device__ bool failed() const { return load_relaxed(&channel_.failed) != 0; }
  __device__ void fail(const core::Status& status) {
    if (atomicCAS(&channel_.failed, 0u, 1u) == 0u) channel_.failure = status;
    __threadfence();
  }
  __device__ core::Status told_by(int peer) const {
    const SharedChannel::Told& told = mine().told[peer];
    if (load_acquire_system(&told.failed) == 0) return {};
    return copy_of(told.status);
  }
  __device__ bool alarmed() const { return load_relaxed_system(&mine().alarm) != 0; }
  __device__ void reset(core::Stage stage) {
    std::uint64_t* const words = mine().flags[static_cast<int>(stage)];
#pragma unroll 1
    for (int w = 0; w < words_of(ranks()); ++w) store_relaxed_system(words + w, reset_word(w, rank(), ranks()));
  }
  __device__ void release() { __threadfence_system(); }
  __device__ void tell(int peer, const core::Status& status) {
    if (channel_.told[peer] != 0) return;
    channel_.told[peer] = 1;
    SharedChannel& theirs = *step_.shared[peer];
    SharedChannel::Told& told = theirs.told[rank()];
    write_to(told.status, status);
    store_release_system(&told.failed, 1u);
    store_release_system(&theirs.alarm, 1u);
  }
  __device__ void raise(int peer, core::Stage stage) {
    auto* const flags = reinterpret_cast<std::uint8_t*>(step_.shared[peer]->flags[static_cast<int>(stage)]);
    store_relaxed_system(flags + rank(), std::uint8_t{1});  // released by release(), once for all peers
  }
  __device__ std::int64_t operation() const { return channel_.operation; }
  __device__ int rank() const { return step_.rank; }
  __device__ int ranks() const { return step_.ranks; }

  // What the own watchdog said first: it gave up for this rank.
  __device__ bool may_proceed_though_alarmed() {
    const core::Status given_up = told_by(rank());
    if (given_up.failed) {
      fail(given_up);
      return false;
    }
    return core::may_proceed(*this);
  }

  // For the host, and for the report of the operation that finds it first.
  __device__ void tell_host() {
    if (load_relaxed(&mine().failure.failed) == 0) {
      write_to(mine().failure.status, channel_.failure);
      store_release_system(&mine().failure.failed, 1u);
    }
    if (step_.report->failure.failed != 0) return;
    step_.report->failure = channel_.failure;
    step_.report->failed_at_step = step_.index;
  }

  __device__ SharedChannel& mine() const { return *step_.shared[rank()]; }

 private:
  // Statuses lie in memory that others write: word by word, past the caches.
  __device__ static core::Status copy_of(const core::Status& status) {
    core::Status copy;
    const auto* from = reinterpret_cast<const std::uint64_t*>(&status);
    auto* to = reinterpret_cast<std::uint64_t*>(&copy);
    for (unsigned i = 0; i < sizeof(copy) / 8; ++i) to[i] = load_relaxed_system(from + i);
    return copy;
  }
  __device__ static void write_to(core::Status& status, const core::Status& value) {
    const auto* from = reinterpret_cast<const std::uint64_t*>(&value);
    auto* to = reinterpret_cast<std::uint64_t*>(&status);
    for (unsigned i = 0; i < sizeof(value) / 8; ++i) store_relaxed_system(to + i, from[i]);
  }

  const StepContext& step_;
  DeviceChannel& channel_;
};
static_assert(sizeof(core::Status) % 8 == 0);

// A channel that has not failed: its tail has nothing to tell.
struct WellFlags : DeviceFlags {
  using DeviceFlags::DeviceFlags;
  __device__ core::Status own() const { return {}; }
};

// What seldom happens is out of line: a small kernel spends most of its time on fetching its instructions.
__device__ __noinline__ inline bool answer_alarm(const StepContext& step) { return DeviceFlags(step).may_proceed_though_alarmed(); }
__device__ __noinline__ inline void finish_failed_step(const StepContext& step) {
  DeviceFlags flags(step);
  flags.tell_host();
  core::finish_step(flags, step.tail);
}

// Room in shared memory for what has a constructor.
template <class T>
struct Raw {
  alignas(T) unsigned char bytes[sizeof(T)];
  __device__ T& get() { return *reinterpret_cast<T*>(bytes); }
};

// By all threads; the same answer in the whole block. Blocks may differ when a failure arrives meanwhile:
// the tail sees it then, so nobody is told of success.
__device__ inline bool may_work(const StepContext& step) {
  wait_for_kernel_before();
  __shared__ bool well;
  if (threadIdx.x == 0) {
    DeviceFlags flags(step);
    // One block looks for news: the word lies across the bus, and 24 blocks that read it take 24 us
    // (bench/probes/pinned_read).
    well = !flags.failed();
    if (well && step.awaited && blockIdx.x == 0 && flags.alarmed()) well = answer_alarm(step);
  }
  __syncthreads();
  return well;
}

// May work, and the operation goes on.
__device__ inline bool may_move(const StepContext& step) {
  return may_work(step) && load_relaxed(&step.channel->outcome) == core::Outcome::go;
}

// For the watchdog. By one thread.
__device__ inline void tell_progress(const StepContext& step, Phase phase) {
  store_relaxed_system(&step.shared[step.rank]->progress, progress_of(step.channel->operation, step.kind, phase));
}

// By all threads, at the end of the kernel. `last` runs in all threads of the last block to get here, when
// everything that any block wrote is visible to it; then the tail.
template <class Last>
__device__ inline void end_step(const StepContext& step, Last&& last) {
  __shared__ bool is_last;
  __syncthreads();
  let_next_kernel_come();
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) {
      __threadfence();
      is_last = atomicAdd(&step.channel->ticket, 1u) == gridDim.x - 1;
      if (is_last) step.channel->ticket = 0;
      __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
  }
  last();
  __syncthreads();
  if (threadIdx.x != 0) return;
  WellFlags flags(step);
  if (step.stamp != core::Stamp::none) step.report->stamps[static_cast<int>(step.stamp)] = now_ns();
  if (flags.failed()) finish_failed_step(step);
  else core::finish_step(flags, step.tail);
  if (step.phase != StepContext::same_phase) tell_progress(step, static_cast<Phase>(step.phase));
  if (step.point != 0) store_release_system(&flags.mine().reached, step.point);
}
__device__ inline void end_step(const StepContext& step) {
  end_step(step, [] {});
}

}  // namespace sluice::cuda
