#include "engine/cpu/releaser.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "boot/signals_blocked.h"
#include "engine/cpu/script_queue.h"
#include "engine/wait.h"

namespace sluice::cpu {

// Shared with the thread, which may outlive the releaser.
struct Releaser::Queue {
  std::mutex mutex;
  std::condition_variable grown, ended;
  ScriptQueue scripts;
  bool stop = false, done = false;

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      grown.wait(lock, [&] { return stop || !scripts.empty(); });
      if (scripts.empty()) break;
      std::unique_ptr<core::Script> script = scripts.take_first();
      lock.unlock();
      script.reset();
      lock.lock();
    }
    done = true;
    ended.notify_all();
  }
};

Releaser::Releaser() : queue_(std::make_shared<Queue>()) {
  const boot::SignalsBlocked blocked;
  thread_ = std::thread([queue = queue_] { queue->serve(); });
}

Releaser::~Releaser() {
  bool done = false;
  {
    std::unique_lock lock(queue_->mutex);
    queue_->stop = true;
    queue_->grown.notify_all();
    if (thread_.get_id() != std::this_thread::get_id()) {
      const std::chrono::nanoseconds left(leave_at_ns_ - engine::now_ns());
      done = queue_->ended.wait_for(lock, left, [&] { return queue_->done; });
    }
  }
  if (done) thread_.join();
  else thread_.detach();
}

void Releaser::let_go(std::unique_ptr<core::Script> script) {
  const std::lock_guard lock(queue_->mutex);
  queue_->scripts.add(std::move(script));
  queue_->grown.notify_one();
}

}  // namespace sluice::cpu
