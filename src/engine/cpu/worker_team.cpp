#include "engine/cpu/worker_team.h"

#include <algorithm>
#include <utility>

#include "boot/signals_blocked.h"
#include "engine/cpu/float_defaults.h"
#include "engine/cpu/futex.h"

namespace sluice::cpu {

WorkerTeam::WorkerTeam(int size) : size_(size) {
  const boot::SignalsBlocked blocked;
  try {
    for (int i = 1; i < size; ++i) helpers_.emplace_back([this, i] { help(i); });
  } catch (...) {
    end_helpers();
    throw;
  }
}

WorkerTeam::~WorkerTeam() { end_helpers(); }

void WorkerTeam::end_helpers() {
  stop_.store(true);
  round_.fetch_add(1);
  futex_wake_all(round_, Shared::no);
  for (std::thread& helper : helpers_) helper.join();
}

// Nothing may leave a part: the others still use `body_`, and a helper's thread would end the process.
void WorkerTeam::run_part(int part) {
  const std::int64_t begin = count_ * part / parts_, end = count_ * (part + 1) / parts_;
  try {
    if (begin < end) (*body_)(begin, end);
  } catch (...) {
    if (!threw_.exchange(true, std::memory_order_relaxed)) thrown_ = std::current_exception();
  }
}

void WorkerTeam::help(int index) {
  const FloatDefaults float_defaults;
  std::uint32_t seen = 0;
  while (true) {
    std::uint32_t round = round_.load(std::memory_order_acquire);
    while (round == seen) {
      futex_wait(round_, seen, -1, Shared::no);
      round = round_.load(std::memory_order_acquire);
    }
    seen = round;
    if (stop_.load()) return;
    if (index < parts_) run_part(index);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_all(left_, Shared::no);
  }
}

void WorkerTeam::parallel(std::int64_t count, int workers, const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  const int parts = static_cast<int>(std::min<std::int64_t>({count, workers, size_}));
  std::unique_lock lock(busy_, std::defer_lock);
  if (parts <= 1 || !lock.try_lock()) return body(0, count);
  count_ = count;
  parts_ = parts;
  body_ = &body;
  left_.store(static_cast<std::uint32_t>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  futex_wake_all(round_, Shared::no);
  run_part(0);
  for (std::uint32_t left = left_.load(std::memory_order_acquire); left != 0; left = left_.load(std::memory_order_acquire)) {
    futex_wait(left_, left, -1, Shared::no);
  }
  if (threw_.exchange(false, std::memory_order_relaxed)) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

}  // namespace sluice::cpu
