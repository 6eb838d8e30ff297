// An engine with a fault in it: before one step of one script something happens to this process. The
// engine inside and the scripts of core stay as they are, since a script is a list of steps.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <utility>

#include "faults/engine_around.h"

namespace sluice::faults {

enum class Fault { none, delay, kill, freeze, no_memory };

// Strikes when a lane gets to it.
class Strike final : public engine::LaneEvent {
 public:
  explicit Strike(Fault fault) : fault_(fault) {}
  State state() const override { return State::pending; }  // so that no caller passes it
  bool wait(std::chrono::milliseconds) const override {
    if (fault_ == Fault::delay) usleep(50'000);
    if (fault_ == Fault::kill) kill(getpid(), SIGKILL);
    if (fault_ == Fault::freeze) kill(getpid(), SIGSTOP);
    if (fault_ == Fault::no_memory) throw std::bad_alloc();
    return true;
  }

 private:
  Fault fault_;
};

// Puts a strike before step `step` of script number `script` (both from 0).
struct Plan {
  Fault fault = Fault::none;
  int script = 0;
  int step = 0;
};

class FaultLane final : public engine::Lane {
 public:
  FaultLane(engine::Lane& inside, Plan plan) : inside_(inside), plan_(plan) {}
  void submit(std::unique_ptr<core::Script> script) override {
    if (plan_.fault != Fault::none && plan_.script-- == 0) {
      script->steps.insert(script->steps.begin() + plan_.step, core::Depend{std::make_shared<Strike>(plan_.fault), false});
    }
    inside_.submit(std::move(script));
  }
  core::Status failure() const override { return inside_.failure(); }

 private:
  engine::Lane& inside_;
  Plan plan_;
};

// One channel is enough here.
class FaultEngine final : public EngineAround {
 public:
  FaultEngine(std::unique_ptr<engine::Engine> inside, Plan plan)
      : EngineAround(std::move(inside)), lane_(EngineAround::lane(0), plan) {}
  engine::Lane& lane(int) override { return lane_; }

 private:
  FaultLane lane_;
};

}  // namespace sluice::faults
