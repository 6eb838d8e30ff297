// Ranks as real processes, for the tests of how they meet.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sluice/errors.h>
#include <sluice/group.h>

#include "boot/process_group.h"
#include "sanitizers.h"

namespace sluice::boot::testing {

using Clock = std::chrono::steady_clock;

// UBSan does, to look at an object of a class that is new to it; its build is clang's with SLUICE_SANITIZE.
inline constexpr bool takes_descriptors = SLUICE_HAS_FEATURE(undefined_behavior_sanitizer) || SLUICE_ADDRESS_SANITIZER;

inline long ms_since(Clock::time_point start) {
  return static_cast<long>(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count());
}

// Thrown by `require` in a child; its text reaches the terminal.
struct Broken {
  std::string text;
};
inline void require(bool good, const std::string& text) {
  if (!good) throw Broken{text};
}

// Runs `body` in a forked child, which exits with 0 when it returns and with 1 when it throws.
inline pid_t fork_child(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  int code = 1;
  try {
    body();
    code = 0;
  } catch (const Broken& broken) {
    std::fprintf(stderr, "child: %s\n", broken.text.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

// The exit code, 128 + n for signal n, or -1 after killing a child that is still there at the end.
inline int end_of(pid_t pid, int within_ms = 20'000) {
  const auto start = Clock::now();
  for (;;) {
    int status = 0;
    if (::waitpid(pid, &status, WNOHANG) == pid) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (ms_since(start) > within_ms) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// One child for each rank; expects that all end with 0.
inline void run_ranks(int size, const std::function<void(int rank)>& body, int within_ms = 60'000) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) children.push_back(fork_child([&] { body(rank); }));
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(end_of(children[static_cast<std::size_t>(rank)], within_ms), 0) << "rank " << rank;
}

// A key that no other test, also of a run at the same time, has.
inline std::string fresh_key(const char* test) {
  static int n = 0;
  return std::string(test) + "/" + std::to_string(::getpid()) + "/" + std::to_string(n++);
}

inline MeetingPlace place(int rank, int size, const std::string& key, int timeout_ms = 20'000) {
  return {"test", rank, size, key, timeout_ms};
}

// The PeerError that `call` must throw; fails when it throws nothing or something else.
template <class Call>
std::string peer_error(Call&& call) {
  try {
    call();
  } catch (const PeerError& error) {
    return error.what();
  }
  throw Broken{"no PeerError came"};
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline int open_files() {
  int n = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++n;
  ::closedir(folder);
  return n;
}

inline std::vector<std::byte> message_of(int rank, std::size_t bytes) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(rank * 37 + 1));
}

}  // namespace sluice::boot::testing
