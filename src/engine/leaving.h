// The end of a communicator that is being destroyed, and who may destroy it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/wait.h"

namespace sluice::engine {

// While it lives, this thread destroys a communicator, whose waits end at deadline_ns(): a process with a dead or
// idle peer must be gone within five seconds (promise F4), however many communicators it destroys one after
// another, so what one of them has waited is taken from those that follow at once.
class Leaving {
 public:
  Leaving() : began_ns_(now_ns()) {
    if (began_ns_ - ended_ns_ > pause_ns) waited_ns_ = 0;
  }
  ~Leaving() {
    ended_ns_ = now_ns();
    if (ended_ns_ - began_ns_ > brief_ns) waited_ns_ += ended_ns_ - began_ns_;
  }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

  std::int64_t deadline_ns() const {
    const std::int64_t least = waited_ns_ < at_most_ns ? brief_ns : brief_ns / 100;
    return began_ns_ + std::max(together_ns - waited_ns_, least);
  }

 private:
  static constexpr std::int64_t together_ns = 3'000'000'000, at_most_ns = 4'000'000'000, brief_ns = 100'000'000, pause_ns = 1'000'000'000;
  static inline thread_local std::int64_t waited_ns_ = 0, ended_ns_ = 0;
  std::int64_t began_ns_;
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
