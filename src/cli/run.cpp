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
#include "cli/run_output.h"
#include "cli/say.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto grace = std::chrono::seconds(3);  // between SIGTERM and SIGKILL, whoever wanted the end
constexpr auto drain_time = std::chrono::milliseconds(500);  // for output of processes that a rank left
// A failure spreads to the peers within milliseconds: so long the first that is seen may be an echo.
constexpr auto settle_time = std::chrono::milliseconds(50);

struct RunFlags {
  int ranks = 0;
  bool help = false;
  bool prefix = true;
  std::vector<std::string> program;  // with its arguments
};

constexpr const char* help_text =
    "Start a program as N ranks on this machine\n"
    "Usage: sluice run -n N [--no-prefix] [--] PROGRAM [ARGS...]\n\n"
    "Options:\n"
    "  -h,--help                   Print this help message and exit\n"
    "  -n,--ranks N                Number of processes\n"
    "  --no-prefix                 Lines as they are, without the rank in front: for JSON\n\n"
    "Each gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Its lines come\n"
    "out whole, with its rank in front; standard input goes to rank 0. Signals are passed on; what\n"
    "still runs 3 s after SIGTERM, SIGINT or SIGQUIT, or when a second one comes, is killed. When one fails,\n"
    "the others are ended, and its exit code (128 + n for signal n) is the exit code. When several fail at\n"
    "once, that is one that a signal has killed, else the first that ended. When nobody reads the output any\n"
    "more, the ranks are ended, and the exit code is that of SIGPIPE, 141; output that cannot be written is 1.\n";

void take_count(RunFlags& flags, const std::string& text) {
  if (flags.ranks != 0) throw UsageError("the number of processes is given twice");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 ||
      value > limits::ranks_per_node) {
    throw UsageError(
        fmt::format("-n {} is not a number of processes from 1 to {}", text, limits::ranks_per_node));
  }
  flags.ranks = value;
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
      take_count(flags, arguments[i]);
    } else if (word.starts_with("--ranks=")) {
      take_count(flags, word.substr(8));
    } else if (word.starts_with("-n") && word.size() > 2 && word[2] != '-') {
      take_count(flags, word.substr(word[2] == '=' ? 3 : 2));
    } else {
      const std::vector<std::string> known = {"-n", "--ranks", "--no-prefix", "--help"};
      const std::string near = nearest(word, known);
      throw UsageError(near.empty() ? fmt::format("unknown flag {}; the flags are {}", word, fmt::join(known, ", "))
                                    : fmt::format("unknown flag {}; did you mean {}?", word, near));
    }
  }
  flags.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(std::min(i, arguments.size())),
                       arguments.end());
  if (flags.help) return flags;
  if (flags.ranks == 0) throw UsageError("the number of processes is missing; did you mean -n N?");
  if (flags.program.empty()) throw UsageError("the program is missing: sluice run -n N [--] PROGRAM ARGS");
  return flags;
}

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
  say("sluice run: {}: {}\n", flags.program[0], std::strerror(why));
  std::fflush(stderr);
  return why == ENOENT ? 127 : 126;  // as a shell says it
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// A standard stream that is closed would lend its number to a descriptor of ours, and output would go there.
void hold_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);  // writing to it fails
  if (fd > STDERR_FILENO) close(fd);
}

bool asks_to_end(int number) { return number == SIGTERM || number == SIGINT || number == SIGQUIT; }

class Job {
 public:
  explicit Job(const RunFlags& flags) : flags_(flags), port_(free_port()) {
    for (int rank = 0; rank < flags.ranks; ++rank) start(rank);
  }

  int run() {
    while (children_.running() > 0 || draining() || writing()) {
      wait_a_little();
      for (auto& reader : readers_) {
        if (reader.wants_more()) reader.read_some();
      }
      reap();
      flush();
      if (const int number = tap_.next()) pass_on(number);
      if (kill_at_ && Clock::now() >= *kill_at_) children_.signal(SIGKILL);
    }
    return exit_code();
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
    readers_.emplace_back(out[0], out_, prefix);
    readers_.emplace_back(err[0], err_, prefix);
  }

  // Output may still be in the pipes, or come from processes that outlive their rank.
  bool draining() {
    if (!drain_end_) {
      for (auto& reader : readers_) reader.read_rest();
      drain_end_ = Clock::now() + drain_time;
    }
    const bool open =
        std::any_of(readers_.begin(), readers_.end(), [](const LineReader& r) { return r.fd() >= 0; });
    if (open && Clock::now() < *drain_end_) return true;
    for (auto& reader : readers_) reader.finish();
    return false;
  }

  // A reader that takes its time is waited for, unless somebody wants an end.
  bool writing() const {
    return (out_.pending() || err_.pending()) && (asked_ == 0 || Clock::now() < *drain_end_);
  }

  void wait_a_little() {
    std::vector<pollfd> fds{{tap_.fd(), POLLIN, 0}};
    for (const auto& reader : readers_) {
      if (reader.wants_more()) fds.push_back({reader.fd(), POLLIN, 0});
    }
    for (const Outlet* outlet : {&out_, &own_err_}) {
      if (outlet->pending()) fds.push_back({outlet->fd(), POLLOUT, 0});
    }
    poll(fds.data(), fds.size(), failed_ != nullptr || drain_end_ || kill_at_ ? 20 : 1000);
  }

  void flush() {
    out_.flush();
    own_err_.flush();
    if (decided_ || (out_.failure() != EPIPE && own_err_.failure() != EPIPE)) return;
    // As if the ranks themselves had written there.
    decided_ = true;
    exit_code_ = 128 + SIGPIPE;
    end_ranks();
  }

  void pass_on(int number) {
    children_.signal(number);
    if (!asks_to_end(number)) return;
    asked_ = number;
    kill_at_ = kill_at_ ? Clock::now() : Clock::now() + grace;
  }

  void end_ranks() {
    children_.signal(SIGTERM);
    if (!kill_at_) kill_at_ = Clock::now() + grace;
  }

  void reap() {
    std::vector<int> well;
    for (const Child* child : children_.reap()) {
      if (child->status == 0) well.push_back(child->rank);
      if (child->status == 0 || decided_) continue;
      if (failed_ == nullptr) blame_at_ = Clock::now() + settle_time;
      // An exit code may be what a peer made of another's death; a signal is the rank's own.
      if (failed_ == nullptr || (WIFSIGNALED(child->status) && !WIFSIGNALED(failed_->status)))
        failed_ = child;
    }
    // Of those that are found ended together it is not known who was first.
    if (failed_ == nullptr) ended_before_.insert(ended_before_.end(), well.begin(), well.end());
    if (failed_ == nullptr || decided_ || (children_.running() > 0 && Clock::now() < blame_at_)) return;
    decided_ = true;
    exit_code_ = exit_code_of(failed_->status);
    err_.add(fmt::format("sluice run: rank {} {}{}\n", failed_->rank, describe_status(failed_->status), perhaps_missed()));
    end_ranks();
  }

  // A rank that ends early may be what the failed one complained of.
  std::string perhaps_missed() const {
    if (ended_before_.empty() || WIFSIGNALED(failed_->status)) return "";
    return fmt::format("; rank{} {} had ended before, with 0", ended_before_.size() > 1 ? "s" : "", fmt::join(ended_before_, ", "));
  }

  int exit_code() const {
    if (err_.pending() || out_.pending()) return exit_code_ != 0 ? exit_code_ : 128 + asked_;
    const int lost = out_.failure() != 0 ? out_.failure() : own_err_.failure();
    if (lost == 0 || lost == EPIPE) return exit_code_;
    say("sluice run: output of the ranks could not be written and is lost: {}\n",
               std::strerror(lost));
    return exit_code_ != 0 ? exit_code_ : static_cast<int>(exit_failed);
  }

  const RunFlags& flags_;
  int port_;
  SignalTap tap_;
  Outlet out_{STDOUT_FILENO};
  Outlet own_err_{STDERR_FILENO};
  Outlet& err_ = same_reader(STDOUT_FILENO, STDERR_FILENO) ? out_ : own_err_;
  std::vector<LineReader> readers_;
  Children children_;
  const Child* failed_ = nullptr;  // whose exit code counts
  std::vector<int> ended_before_;  // ranks, with 0, before any failed
  Clock::time_point blame_at_;
  bool decided_ = false;  // exit_code_ is, and the ranks have been told to end
  int asked_ = 0;         // the last signal that wants an end
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> drain_end_;
  int exit_code_ = 0;
};

}  // namespace

int run_main(const std::vector<std::string>& arguments) {
  try {
    const RunFlags flags = parse_run(arguments);
    if (flags.help) {
      fmt::print("{}", help_text);
      return exit_done;
    }
    hold_standard_streams();
    return Job(flags).run();
  } catch (const UsageError& error) {
    say("sluice run: {}\n", error.what());
    return exit_bad_usage;
  } catch (const std::exception& error) {
    say("sluice run: {}\n", error.what());
    return exit_failed;
  }
}

Command add_run(CLI::App& program) {
  CLI::App* app = program.add_subcommand("run", "Start a program as N ranks on this machine");
  return {app, [] { return static_cast<int>(exit_bad_usage); }};  // run_main has it before any parsing
}

}  // namespace sluice::cli
