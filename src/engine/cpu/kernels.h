// The data kernels of core/kernels.h on the CPU. Each is called by one thread, which divides the work
// among the team; the step-driven engine of the tests calls the very same functions with a team of one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <sluice/limits.h>

#include "core/kernels.h"
#include "engine/cpu/worker_team.h"

namespace sluice::cpu {

// Waking a worker takes as long as moving so many bytes, or longer.
inline constexpr std::int64_t bytes_per_worker = 128 * 1024;

// Of a worker that quantises: a row, and its scales of at most four bytes for each group of 128 elements.
inline constexpr std::int64_t move_scratch_bytes = limits::row_bytes + limits::row_bytes / 128 * 4;

// What a kernel may use besides its arguments.
struct KernelContext {
  WorkerTeam& team;
  int workers = 1;
  std::int64_t operation = 0;  // running number on the channel
  std::int64_t now_ns = 0;  // when the kernel began
  bool well = true;         // the channel has not failed; plan and finish alone run when it has
  std::byte* scratch = nullptr;  // of scratch_bytes()

  // To move so many bytes.
  int workers_for(std::int64_t bytes) const {
    return static_cast<int>(std::clamp<std::int64_t>(bytes / bytes_per_worker, 1, std::max(workers, 1)));
  }
};

// What the kernels of one lane need at most: made with the lane, so that no operation fails for lack of it.
inline std::int64_t scratch_bytes(int workers, std::int64_t local_experts) {
  return std::max(workers * move_scratch_bytes, local_experts * std::int64_t{sizeof(std::int64_t)});
}

void run_kernel(const core::PlanArgs&, KernelContext&);
void run_kernel(const core::PublishArgs&, KernelContext&);
void run_kernel(const core::AgreeArgs&, KernelContext&);
void run_kernel(const core::MoveArgs&, KernelContext&);
void run_kernel(const core::FinishArgs&, KernelContext&);
void run_kernel(const core::GatherArgs&, KernelContext&);
void run_kernel(const core::ReduceArgs&, KernelContext&);
void run_kernel(const core::SealArgs&, KernelContext&);

}  // namespace sluice::cpu
