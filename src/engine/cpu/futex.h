// Sleeping on a 32-bit word, within one process or across processes that share it.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace sluice::cpu {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

enum class Shared { no, yes };

// Returns when woken, when `word` does not hold `seen`, after `timeout_ns` (negative: without end), or
// for no reason: the caller looks again.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::int64_t timeout_ns, Shared shared) {
  timespec limit{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  const int op = shared == Shared::yes ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  syscall(SYS_futex, &word, op, seen, timeout_ns < 0 ? nullptr : &limit, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<std::uint32_t>& word, Shared shared) {
  syscall(SYS_futex, &word, shared == Shared::yes ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace sluice::cpu
