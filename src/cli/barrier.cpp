#include "cli/barrier.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int most_spins = 20'000;
constexpr int most_yields = 2'000;

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  const timespec at_most{0, 100'000'000};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, &at_most, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Met SharedBarrier::wait(int ranks, WaitFor form, std::chrono::milliseconds longest) {
  const std::uint32_t mine = generation.load(std::memory_order_acquire);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(ranks)) {
    arrived.store(0, std::memory_order_relaxed);
    generation.store(mine + 1, std::memory_order_release);
    wake_all(generation);
    return Met::all;
  }
  const auto passed = [&] { return generation.load(std::memory_order_acquire) != mine; };
  for (int i = 0; form == WaitFor::spin && i < most_spins && !passed(); ++i) pause_briefly();
  for (int i = 0; form != WaitFor::sleep && i < most_yields && !passed(); ++i) sched_yield();
  const auto give_up = Clock::now() + longest;
  while (!passed()) {
    if (abandoned.load(std::memory_order_acquire) != 0) return Met::abandoned;
    if (longest.count() > 0 && Clock::now() > give_up) return Met::late;
    sleep_while(generation, mine);
  }
  return Met::all;
}

void SharedBarrier::abandon() {
  abandoned.store(1, std::memory_order_release);
  wake_all(generation);
}

}  // namespace sluice::cli
