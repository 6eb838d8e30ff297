// The end of a communicator that is being destroyed, and who may destroy it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "engine/wait.h"

namespace sluice::engine {

// While it lives, a communicator of this process leaves. Its waits end at deadline_ns(): a process with a dead or
// idle peer must be gone within five seconds (contract F4), however many communicators it destroys one after
// another, so those that follow at once share the time of the first.
class Leaving {
 public:
  Leaving() {
    const std::lock_guard lock(process().mutex);
    const std::int64_t now = now_ns();
    if (process().leaving++ == 0 && now - process().ended_ns > pause_ns) process().began_ns = now;
    deadline_ns_ = std::max(process().began_ns + together_ns, now + alone_ns);
  }
  ~Leaving() {
    const std::lock_guard lock(process().mutex);
    --process().leaving;
    process().ended_ns = now_ns();
  }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

  std::int64_t deadline_ns() const { return deadline_ns_; }

 private:
  static constexpr std::int64_t together_ns = 3'000'000'000, alone_ns = 100'000'000, pause_ns = 100'000'000;
  struct Process {
    std::mutex mutex;
    int leaving = 0;
    std::int64_t began_ns = 0, ended_ns = 0;
  };
  static Process& process() {
    static Process& once = *new Process;
    return once;
  }
  std::int64_t deadline_ns_ = 0;
};

// While it lives, a lane lets go in this thread of what a script kept alive. If that owned the communicator,
// another thread must destroy it: the lane would wait for itself.
class LettingGo {
 public:
  LettingGo() { ++depth_; }
  ~LettingGo() { --depth_; }
  LettingGo(const LettingGo&) = delete;
  LettingGo& operator=(const LettingGo&) = delete;

  static bool here() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace sluice::engine
