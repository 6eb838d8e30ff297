// The data kernels of core/kernels.h on the CPU. Each is called by one thread, which divides the work
// among the team; the step-driven engine of the tests calls the very same functions with a team of one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "core/kernels.h"

namespace sluice::cpu {

// Threads that run one kernel together.
class Team {
 public:
  virtual ~Team() = default;
  virtual int size() const = 0;
  // Calls body(begin, end) on contiguous parts of [0, count), at most `workers` at once, each part by
  // one thread, and returns when all have ended.
  virtual void parallel(std::int64_t count, int workers, const std::function<void(std::int64_t, std::int64_t)>& body) = 0;
};

class TeamOfOne final : public Team {
 public:
  int size() const override { return 1; }
  void parallel(std::int64_t count, int, const std::function<void(std::int64_t, std::int64_t)>& body) override {
    if (count > 0) body(0, count);
  }
};

// Waking a worker takes as long as moving so many bytes, or longer.
inline constexpr std::int64_t bytes_per_worker = 128 * 1024;

// What a kernel may use besides its arguments.
struct KernelContext {
  Team& team;
  int workers = 1;
  std::int64_t operation = 0;  // running number on the channel
  std::int64_t now_ns = 0;  // when the kernel began
  bool well = true;         // the channel has not failed; plan and finish alone run when it has

  // To move so many bytes.
  int workers_for(std::int64_t bytes) const {
    return static_cast<int>(std::clamp<std::int64_t>(bytes / bytes_per_worker, 1, std::max(workers, 1)));
  }
};

void run_kernel(const core::PlanArgs&, KernelContext&);
void run_kernel(const core::PublishArgs&, KernelContext&);
void run_kernel(const core::AgreeArgs&, KernelContext&);
void run_kernel(const core::MoveArgs&, KernelContext&);
void run_kernel(const core::FinishArgs&, KernelContext&);
void run_kernel(const core::GatherArgs&, KernelContext&);
void run_kernel(const core::ReduceArgs&, KernelContext&);
void run_kernel(const core::SealArgs&, KernelContext&);

}  // namespace sluice::cpu
