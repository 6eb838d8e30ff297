// Child processes that never outlive their parent.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace sluice::cli {

struct Child {
  int rank = 0;
  pid_t pid = -1;
  bool running = false;
  int status = 0;  // of waitpid
};

class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  // Kills and reaps what still runs.
  ~Children();

  // Forks; the child runs `body`, whose result is its exit code, and has the signal mask and handlers
  // that a fresh process expects. With `own_group` it leads a process group, so that its own children
  // get the signals too. No thread may exist. Throws std::system_error.
  Child& spawn(int rank, bool own_group, const std::function<int()>& body);

  // Those that have ended since the last call, without waiting.
  std::vector<Child*> reap();

  // Sends to every child that still runs.
  void signal(int number);

  int running() const;

 private:
  std::vector<Child> children_;
  bool own_groups_ = false;
};

// While it lives, SIGCHLD and the signals that ask a program to end (or that users send) are not
// delivered but read from fd().
class SignalTap {
 public:
  SignalTap();
  ~SignalTap();
  SignalTap(const SignalTap&) = delete;
  SignalTap& operator=(const SignalTap&) = delete;

  int fd() const { return fd_; }
  // Next signal that has arrived, 0 when there is none; SIGCHLD is swallowed.
  int next();

 private:
  int fd_ = -1;
};

// "exited with code 3", "was killed by signal 9 (Killed)".
std::string describe_status(int status);

// What torchrun would set for this rank of a job on one machine, in the environment of this process.
void set_rank_environment(int rank, int ranks, int port);

// A TCP port that nobody listens on now: a number for a job's MASTER_PORT.
int free_port();

}  // namespace sluice::cli
