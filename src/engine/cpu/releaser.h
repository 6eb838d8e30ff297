// Lets go, in a thread of its own, of what scripts kept alive. The destructors are the caller's: they may take their
// time, wait for later operations, or destroy the communicator, and no lane must stand still for that.
// (Tests: C7.an_owner_may_*, C7.the_owner_of_a_view_may_own_the_communicator, F4.an_owner_that_does_not_end_is_left_behind)
#pragma once

#include <cstdint>
#include <memory>
#include <thread>

#include "core/script.h"

namespace sluice::cpu {

class Releaser {
 public:
  Releaser();
  // Waits until all is let go, at most until leave_at(), and not at all in its own thread; what is left then goes later.
  ~Releaser();
  Releaser(const Releaser&) = delete;
  Releaser& operator=(const Releaser&) = delete;

  // Takes no memory.
  void let_go(std::unique_ptr<core::Script> script);
  // A moment of engine::now_ns().
  void leave_at(std::int64_t ns) { leave_at_ns_ = ns; }

 private:
  struct Queue;

  std::shared_ptr<Queue> queue_;
  std::int64_t leave_at_ns_ = 0;
  std::thread thread_;
};

}  // namespace sluice::cpu
