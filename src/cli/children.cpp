#include "cli/children.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace sluice::cli {
namespace {

sigset_t tapped_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    sigaddset(&set, number);
  return set;
}

[[noreturn]] void child_main(pid_t parent, bool own_group, const std::function<int()>& body) {
  if (own_group) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it ended before the line above
  const sigset_t set = tapped_signals();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  _exit(body());
}

}  // namespace

Children::~Children() {
  signal(SIGKILL);
  for (Child& child : children_) {
    while (child.running && waitpid(child.pid, &child.status, 0) < 0 && errno == EINTR) {
    }
  }
}

Child& Children::spawn(int rank, bool own_group, const std::function<int()>& body) {
  std::fflush(stdout);
  std::fflush(stderr);
  own_groups_ = own_group;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) child_main(parent, own_group, body);
  if (own_group) setpgid(pid, pid);  // whoever comes first
  return children_.emplace_back(Child{rank, pid, true, 0});
}

std::vector<Child*> Children::reap() {
  std::vector<Child*> ended;
  for (Child& child : children_) {
    if (!child.running) continue;
    // What a rank leaves behind in its group ends with it. While the rank is a zombie, its number cannot
    // have gone to a stranger.
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
      continue;
    if (own_groups_) kill(-child.pid, SIGKILL);
    waitpid(child.pid, &child.status, 0);
    child.running = false;
    ended.push_back(&child);
  }
  return ended;
}

void Children::signal(int number) {
  for (const Child& child : children_) {
    if (child.running) kill(own_groups_ ? -child.pid : child.pid, number);
  }
}

int Children::running() const {
  int count = 0;
  for (const Child& child : children_) count += child.running ? 1 : 0;
  return count;
}

SignalTap::SignalTap() {
  const sigset_t set = tapped_signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "signalfd");
}

SignalTap::~SignalTap() {
  while (next() != 0) {
  }
  close(fd_);
  const sigset_t set = tapped_signals();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

int SignalTap::next() {
  signalfd_siginfo info{};
  while (read(fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo != SIGCHLD) return static_cast<int>(info.ssi_signo);
  }
  return 0;
}

std::string describe_status(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

void set_rank_environment(int rank, int ranks, int port) {
  const std::string rank_text = fmt::format("{}", rank);
  const std::string ranks_text = fmt::format("{}", ranks);
  for (const char* name : {"RANK", "LOCAL_RANK"}) setenv(name, rank_text.c_str(), 1);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) setenv(name, ranks_text.c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", fmt::format("{}", port).c_str(), 1);
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  int port = 0;
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    port = ntohs(address.sin_port);
  }
  if (fd >= 0) close(fd);
  if (port == 0) throw std::system_error(errno, std::generic_category(), "no free TCP port for MASTER_PORT");
  return port;
}

}  // namespace sluice::cli
