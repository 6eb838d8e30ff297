#include "harness.h"

#include <fcntl.h>
#include <gtest/gtest-spi.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <sstream>
#include <thread>

#include "memory.h"
#include "stacks.h"

namespace conformance {

bool on_cuda() {
  static const bool value = [] {
    const char* text = std::getenv("SLUICE_TEST_ENGINE");
    return text != nullptr && std::string(text) == "cuda";
  }();
  return value;
}

std::vector<Place> places() {
  const std::string engine = on_cuda() ? "cuda" : "cpu";
  return {{engine, Launch::threads}, {engine, Launch::processes}};
}

std::string name_of(const Place& place) {
  return place.engine + (place.launch == Launch::threads ? "_threads" : "_processes");
}

bool long_runs() {
  static const bool value = [] {
    const char* text = std::getenv("SLUICE_LONG");
    return text != nullptr && std::string(text) == "1";
  }();
  return value;
}

int slower() {
  const char* text = std::getenv("SLUICE_TEST_SLOWER");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

std::int64_t entries_in(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

double now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

void sleep_ms(double ms) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(ms / 1e3);
  time.tv_nsec = static_cast<long>((ms - static_cast<double>(time.tv_sec) * 1e3) * 1e6);
  nanosleep(&time, nullptr);
}

namespace {

// What a child tells its parent, one message each: 'F' a failure, 'B' the body has ended.
void tell(int fd, char kind, const std::string& text) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto length = static_cast<std::uint32_t>(text.size());
  std::string message(1, kind);
  message.append(reinterpret_cast<const char*>(&length), sizeof length);
  message += text;
  for (std::size_t sent = 0; sent < message.size();) {
    const ssize_t n = write(fd, message.data() + sent, message.size() - sent);
    if (n <= 0) return;
    sent += static_cast<std::size_t>(n);
  }
}

thread_local const testing::TestPartResultArray* results_here = nullptr;

// Runs a body and returns what this thread found wrong.
std::vector<std::string> run_intercepted(const std::function<void()>& body) {
  testing::TestPartResultArray results;
  const testing::TestPartResultArray* before = results_here;
  results_here = &results;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    try {
      body();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "exception: " << error.what();
    } catch (...) {
      ADD_FAILURE() << "exception of an unknown type";
    }
  }
  results_here = before;
  std::vector<std::string> failures;
  for (int i = 0; i < results.size(); ++i) {
    const testing::TestPartResult& result = results.GetTestPartResult(i);
    if (!result.failed() && !result.skipped()) continue;
    std::ostringstream text;
    text << (result.file_name() ? result.file_name() : "") << ':' << result.line_number() << ": "
         << result.message();
    failures.push_back(text.str());
  }
  return failures;
}

// The same, told to the parent.
void run_body(int fd, const std::string& who, const std::function<void()>& body) {
  for (const std::string& failure : run_intercepted(body)) tell(fd, 'F', who + ": " + failure);
}

// Before CUDA starts in this process: a queue for every stream, and no first launch that has to load its
// kernel behind a waiting stream.
void prepare_process(const Place& place) {
  if (place.engine != "cuda") return;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

void prepare_thread(const Place& place, int rank) {
  if (place.engine == "cuda") sluice::cli::use_gpu_of(rank);
}

void be_rank_process(const Place& place, int rank, int size, int port, const RankBody& body,
                     const RunOptions& options) {
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", std::to_string(size).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  prepare_process(place);
  prepare_thread(place, rank);
  Rank self{{}, place.engine, place.launch, rank, size};
  if (!options.no_group) self.group = sluice::Group::from_environment();
  body(self);
}

void be_rank_threads(int fd, const Place& place, int size, const RankBody& body) {
  prepare_process(place);
  std::vector<sluice::Group> groups = sluice::Group::threads(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r, group = std::move(groups[static_cast<std::size_t>(r)])]() mutable {
      run_body(fd, "rank " + std::to_string(r), [&] {
        prepare_thread(place, r);
        Rank self{std::move(group), place.engine, place.launch, r, size};
        body(self);
      });
    });
  for (std::thread& thread : threads) thread.join();
}

struct Child {
  pid_t pid = -1;
  int fd = -1;
  std::string name;
  std::string inbox;
  bool lost = false;  // may be killed
  bool open = true;
  double body_end = 0;
  int failures = 0;
};

Child start(const std::string& name, const std::function<void(int fd)>& main) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  Child child;
  child.name = name;
  child.fd = ends[0];
  std::fflush(nullptr);
  child.pid = fork();
  if (child.pid == 0) {
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    main(ends[1]);
    tell(ends[1], 'B', "");
    std::fflush(nullptr);
    // exit() would run GoogleTest's and other static destructors twice over; the library must need none.
    _exit(0);
  }
  close(ends[1]);
  return child;
}

void read_inbox(Child& child) {
  while (child.inbox.size() >= 5) {
    std::uint32_t length = 0;
    std::memcpy(&length, child.inbox.data() + 1, sizeof length);
    if (child.inbox.size() < 5 + length) return;
    if (child.inbox[0] == 'B')
      child.body_end = now_ms();
    else if (++child.failures <= 4)
      ADD_FAILURE() << child.inbox.substr(5, length);
    child.inbox.erase(0, 5 + length);
  }
}

void reap(Child& child) {
  close(child.fd);
  child.open = false;
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (child.lost) return;
  if (WIFSIGNALED(status))
    ADD_FAILURE() << child.name << " ended by signal " << WTERMSIG(status) << " ("
                  << strsignal(WTERMSIG(status)) << ")";
  else if (WEXITSTATUS(status) != 0)
    ADD_FAILURE() << child.name << " exited with code " << WEXITSTATUS(status);
  else if (child.body_end == 0)
    ADD_FAILURE() << child.name << " left before its body had ended";
}

void drain(Child& child) {
  char buffer[4096];
  const ssize_t n = read(child.fd, buffer, sizeof buffer);
  if (n > 0) {
    child.inbox.append(buffer, static_cast<std::size_t>(n));
    read_inbox(child);
  } else {
    reap(child);
  }
}

bool any_open(const std::vector<Child>& children, bool lost_too) {
  return std::any_of(children.begin(), children.end(),
                     [&](const Child& c) { return c.open && (lost_too || !c.lost); });
}

void kill_open(std::vector<Child>& children, const std::string& why) {
  for (Child& child : children) {
    if (!child.open) continue;
    if (!child.lost)
      ADD_FAILURE() << child.name << (child.body_end > 0 ? " (its body has ended) " : " ") << why;
    child.lost = true;
    kill(child.pid, SIGKILL);
    kill(child.pid, SIGCONT);
  }
}

// Whether some child has ended its body and is still there too long after.
bool overstays(const std::vector<Child>& children, const RunOptions& options) {
  return std::any_of(children.begin(), children.end(), [&](const Child& c) {
    return c.open && !c.lost && c.body_end > 0 && now_ms() > c.body_end + 1e3 * options.leave_s * slower();
  });
}

void watch(std::vector<Child>& children, const RunOptions& options) {
  const double end = now_ms() + 1e3 * options.timeout_s * slower();
  double end_after_failure = 0;
  while (any_open(children, true)) {
    std::vector<pollfd> fds;
    std::vector<Child*> owners;
    for (Child& child : children)
      if (child.open) fds.push_back({child.fd, POLLIN, 0}), owners.push_back(&child);
    poll(fds.data(), fds.size(), 50);
    for (std::size_t i = 0; i < fds.size(); ++i)
      if (fds[i].revents != 0) drain(*owners[i]);
    const bool failed =
        std::any_of(children.begin(), children.end(), [](const Child& c) { return c.failures > 0; });
    if (failed && end_after_failure == 0) end_after_failure = now_ms() + 5e3 * slower();
    if (!any_open(children, false))
      kill_open(children, "");
    else if (now_ms() > end)
      kill_open(children, "was killed: it hung");
    else if (failed && now_ms() > end_after_failure)
      kill_open(children, "was killed: still there 5 s after another rank's failure");
    else if (overstays(children, options))
      kill_open(children, "was killed: a process stayed after its body");
  }
}

int fresh_port() {
  static int calls = 0;
  return 20000 + static_cast<int>((static_cast<long>(getpid()) * 61 + 1009L * calls++) % 40000);
}

// SLUICE_TEST_FORK=0: ranks that are threads run in this process, so that a GPU's context, which takes most
// of a second, is made once. A hang then ends the whole suite.
bool forks() {
  static const bool value = [] {
    const char* text = std::getenv("SLUICE_TEST_FORK");
    return text == nullptr || std::string(text) != "0";
  }();
  return value;
}

void run_here(int ranks, const std::function<void(int rank)>& body, const RunOptions& options) {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::vector<std::string> failures;
  std::thread watch([&] {
    std::unique_lock lock(mutex);
    const auto limit = std::chrono::seconds(options.timeout_s * slower()), suspicious = limit / 8;
    if (changed.wait_for(lock, suspicious, [&] { return ended; })) return;
    std::fprintf(stderr, "the test takes long; its threads:\n");
    print_stacks();
    if (changed.wait_for(lock, limit - suspicious, [&] { return ended; })) return;
    std::fprintf(stderr, "the test hung; no other can run in this process\n");
    std::fflush(nullptr);
    _exit(3);
  });
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      for (const std::string& failure : run_intercepted([&] { body(r); })) {
        const std::lock_guard lock(mutex);
        failures.push_back("rank " + std::to_string(r) + ": " + failure);
      }
    });
  for (std::thread& thread : threads) thread.join();
  {
    const std::lock_guard lock(mutex);
    ended = true;
  }
  changed.notify_all();
  watch.join();
  for (std::size_t i = 0; i < std::min<std::size_t>(failures.size(), 4); ++i) ADD_FAILURE() << failures[i];
}

}  // namespace

std::string failures_of(const std::function<void()>& body) {
  std::string text;
  for (const std::string& failure : run_intercepted(body)) text += failure + "\n";
  return text;
}

bool failed_here() {
  for (int i = 0; results_here != nullptr && i < results_here->size(); ++i)
    if (results_here->GetTestPartResult(i).failed()) return true;
  return false;
}

void run_ranks(const Place& place, int ranks, const RankBody& body, const RunOptions& given) {
  RunOptions options = given;
  if (place.engine == "cuda") options.timeout_s += 2 * ranks;  // half a second for each context, and shared
  if (place.launch == Launch::threads && !forks()) {
    prepare_process(place);
    if (place.engine == "cuda") {
      // The stream of the tests' copies has its first work while no rank launches: else it may be dealt the queue in
      // which one waits.
      prepare_thread(place, 0);
      char byte = 0;
      CallBytes there(1);
      fetch(&byte, there.data(), 1);
    }
    std::vector<sluice::Group> groups = sluice::Group::threads(ranks);
    return run_here(ranks, [&](int r) {
      prepare_thread(place, r);
      Rank self{std::move(groups[static_cast<std::size_t>(r)]), place.engine, place.launch, r, ranks};
      body(self);
    }, options);
  }
  std::vector<Child> children;
  if (place.launch == Launch::threads) {
    children.push_back(start("the process of all ranks", [&](int fd) {
      try {
        be_rank_threads(fd, place, ranks, body);
      } catch (const std::exception& error) {
        tell(fd, 'F', std::string("starting ranks as threads: ") + error.what());
      }
    }));
  } else {
    const int port = fresh_port();
    for (int r = 0; r < ranks; ++r) {
      children.push_back(start("rank " + std::to_string(r), [&, r](int fd) {
        run_body(fd, "rank " + std::to_string(r),
                 [&] { be_rank_process(place, r, ranks, port, body, options); });
      }));
      children.back().lost = std::find(options.lost.begin(), options.lost.end(), r) != options.lost.end();
    }
  }
  watch(children, options);
}

void run_alone(const std::function<void()>& body, const RunOptions& options) {
  if (!forks()) return run_here(1, [&](int) { body(); }, options);
  std::vector<Child> children;
  children.push_back(start("the process", [&](int fd) { run_body(fd, "the process", body); }));
  watch(children, options);
}

}  // namespace conformance
