// One thread that watches the sockets of a process group for peers that hang up.
#pragma once

#include <memory>
#include <mutex>
#include <thread>

#include "boot/pair_sockets.h"
#include "boot/watchers.h"

namespace sluice::boot {

// Reads nothing from the sockets: messages of a collective may be under way on them. The thread is
// started by the first watch().
class Monitor {
 public:
  explicit Monitor(std::shared_ptr<const PairSockets> sockets);
  ~Monitor();

  std::shared_ptr<void> watch(Watchers::OnGone on_gone);

 private:
  void start();

  std::shared_ptr<const PairSockets> sockets_;
  std::shared_ptr<Watchers> watchers_ = std::make_shared<Watchers>();
  std::mutex mutex_;
  UniqueFd wake_;  // its other end is the thread's; closing it ends the thread
  std::thread thread_;
};

}  // namespace sluice::boot
