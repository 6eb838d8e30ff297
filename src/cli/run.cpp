#include "cli/run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sluice/limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>

#include "cli/children.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGrace = std::chrono::seconds(3);  // between SIGTERM and SIGKILL, once one rank has failed
constexpr auto kDrain = std::chrono::milliseconds(500);  // for output of processes that a rank left behind
// A failure spreads to the peers within milliseconds: so long the first that is seen may be an echo.
constexpr auto kSettle = std::chrono::milliseconds(50);
// A longer one is cut, so that a program that never ends its line does not take all memory.
constexpr std::size_t kLongestLine = std::size_t{64} << 20;

struct RunFlags {
  int ranks = 0;
  bool help = false;
  bool prefix = true;
  std::vector<std::string> program;  // with its arguments
};

constexpr const char* kHelp =
    "Start a program as N ranks on this machine\n"
    "Usage: sluice run -n N [--no-prefix] [--] PROGRAM [ARGS...]\n\n"
    "Options:\n"
    "  -h,--help                   Print this help message and exit\n"
    "  -n,--ranks N                Number of processes\n"
    "  --no-prefix                 Lines as they are, without the rank in front: for JSON\n\n"
    "Each gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Its lines come\n"
    "out whole, with its rank in front; standard input goes to rank 0. Signals are passed on. When one "
    "fails,\n"
    "the others are ended, and its exit code (128 + n for signal n) is the exit code. When several fail at\n"
    "once, that is one that a signal has killed, else the first that ended.\n";

int parse_count(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 ||
      value > limits::ranks_per_node) {
    throw UsageError(
        fmt::format("-n {} is not a number of processes from 1 to {}", text, limits::ranks_per_node));
  }
  return value;
}

RunFlags parse_run(const std::vector<std::string>& arguments) {
  RunFlags flags;
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (!word.starts_with('-')) break;
    if (word == "-h" || word == "--help") {
      flags.help = true;
    } else if (word == "--no-prefix") {
      flags.prefix = false;
    } else if (word == "-n" || word == "--ranks") {
      if (++i == arguments.size()) throw UsageError(word + " needs a number of processes");
      flags.ranks = parse_count(arguments[i]);
    } else if (word.starts_with("--ranks=")) {
      flags.ranks = parse_count(word.substr(8));
    } else if (word.starts_with("-n") && word.size() > 2 && word[2] != '-') {
      flags.ranks = parse_count(word.substr(word[2] == '=' ? 3 : 2));
    } else {
      const std::string near = nearest(word, {"-n", "--ranks", "--no-prefix", "--help"});
      throw UsageError(fmt::format("unknown flag {}; did you mean {}?", word, near.empty() ? "-n" : near));
    }
  }
  flags.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(std::min(i, arguments.size())),
                       arguments.end());
  if (flags.help) return flags;
  if (flags.ranks == 0) throw UsageError("the number of processes is missing; did you mean -n N?");
  if (flags.program.empty()) throw UsageError("the program is missing: sluice run -n N [--] PROGRAM ARGS");
  return flags;
}

// One stream of one rank, cut into lines that go out whole.
class LineReader {
 public:
  LineReader(int fd, int out, std::string prefix) : fd_(fd), out_(out), prefix_(std::move(prefix)) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  LineReader(LineReader&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        out_(other.out_),
        prefix_(std::move(other.prefix_)),
        line_(std::move(other.line_)) {}
  LineReader& operator=(LineReader&&) = delete;
  ~LineReader() { finish(); }

  int fd() const { return fd_; }

  void read_some() {
    std::array<char, 1 << 14> part;
    const ssize_t n = read(fd_, part.data(), part.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return finish();
    for (const char* at = part.data(); at != part.data() + n;) {
      const char* end = std::find(at, static_cast<const char*>(part.data()) + n, '\n');
      line_.append(at, end);
      at = end;
      if (end != part.data() + n) {
        write_line();
        ++at;
      } else if (line_.size() > kLongestLine) {
        write_line();
      }
    }
  }

  void finish() {
    if (fd_ < 0) return;
    if (!line_.empty()) write_line();
    close(fd_);
    fd_ = -1;
  }

 private:
  void write_line() {
    const std::string text = prefix_ + line_ + "\n";
    line_.clear();
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t n = write(out_, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) {  // somebody has made our standard output non-blocking
        pollfd writable{out_, POLLOUT, 0};
        poll(&writable, 1, -1);
        continue;
      }
      if (n <= 0) return;  // nobody reads any more
      done += static_cast<std::size_t>(n);
    }
  }

  int fd_;
  int out_;
  std::string prefix_;
  std::string line_;
};

int exec_program(const RunFlags& flags, int rank, int port, int out, int err) {
  set_rank_environment(rank, flags.ranks, port);
  ::signal(SIGPIPE, SIG_DFL);
  if (rank != 0) {
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    close(nothing);
  }
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  std::vector<char*> argv;
  for (const auto& word : flags.program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int why = errno;
  fmt::print(stderr, "sluice run: {}: {}\n", flags.program[0], std::strerror(why));
  std::fflush(stderr);
  return why == ENOENT ? 127 : 126;  // as a shell says it
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

class Job {
 public:
  explicit Job(const RunFlags& flags) : flags_(flags), port_(free_port()) {
    for (int rank = 0; rank < flags.ranks; ++rank) start(rank);
  }

  int run() {
    while (children_.running() > 0 || draining()) {
      wait_a_little();
      for (auto& reader : readers_) {
        if (reader.fd() >= 0) reader.read_some();
      }
      reap();
      if (const int number = tap_.next()) children_.signal(number);
      if (kill_at_ && Clock::now() > *kill_at_) children_.signal(SIGKILL);
    }
    return exit_code_;
  }

 private:
  void start(int rank) {
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) {
      throw std::system_error(errno, std::generic_category(), "pipe");
    }
    children_.spawn(rank, true, [&] { return exec_program(flags_, rank, port_, out[1], err[1]); });
    close(out[1]);
    close(err[1]);
    const std::string prefix = flags_.prefix ? fmt::format("[{}] ", rank) : "";
    readers_.emplace_back(out[0], STDOUT_FILENO, prefix);
    readers_.emplace_back(err[0], STDERR_FILENO, prefix);
  }

  // Output may still be in the pipes, or come from processes that outlive their rank.
  bool draining() {
    const bool open =
        std::any_of(readers_.begin(), readers_.end(), [](const LineReader& r) { return r.fd() >= 0; });
    if (!drain_end_) drain_end_ = Clock::now() + kDrain;
    return open && Clock::now() < *drain_end_;
  }

  void wait_a_little() {
    std::vector<pollfd> fds{{tap_.fd(), POLLIN, 0}};
    for (const auto& reader : readers_) {
      if (reader.fd() >= 0) fds.push_back({reader.fd(), POLLIN, 0});
    }
    poll(fds.data(), fds.size(), failed_ != nullptr || drain_end_ ? 20 : 1000);
  }

  void reap() {
    for (const Child* child : children_.reap()) {
      if (child->status == 0 || kill_at_) continue;
      if (failed_ == nullptr) blame_at_ = Clock::now() + kSettle;
      // An exit code may be what a peer made of another's death; a signal is the rank's own.
      if (failed_ == nullptr || (WIFSIGNALED(child->status) && !WIFSIGNALED(failed_->status)))
        failed_ = child;
    }
    if (failed_ == nullptr || kill_at_ || (children_.running() > 0 && Clock::now() < blame_at_)) return;
    exit_code_ = exit_code_of(failed_->status);
    fmt::print(stderr, "sluice run: rank {} {}\n", failed_->rank, describe_status(failed_->status));
    children_.signal(SIGTERM);
    kill_at_ = Clock::now() + kGrace;
  }

  const RunFlags& flags_;
  int port_;
  SignalTap tap_;
  std::vector<LineReader> readers_;
  Children children_;
  const Child* failed_ = nullptr;  // whose exit code counts
  Clock::time_point blame_at_;
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> drain_end_;
  int exit_code_ = 0;
};

}  // namespace

int run_main(const std::vector<std::string>& arguments) {
  try {
    const RunFlags flags = parse_run(arguments);
    if (flags.help) {
      fmt::print("{}", kHelp);
      return kDone;
    }
    return Job(flags).run();
  } catch (const UsageError& error) {
    fmt::print(stderr, "sluice run: {}\n", error.what());
    return kBadUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "sluice run: {}\n", error.what());
    return kFailed;
  }
}

Command add_run(CLI::App& program) {
  CLI::App* app = program.add_subcommand("run", "Start a program as N ranks on this machine");
  return {app, [] { return static_cast<int>(kBadUsage); }};  // run_main has it before any parsing
}

}  // namespace sluice::cli
