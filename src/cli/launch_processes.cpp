#include "cli/launch_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cli/children.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

// How long ranks may take to end by themselves after a signal, or after one has failed. The library notices
// a failed peer at once, so this is for ranks that hang.
constexpr std::chrono::milliseconds usual_grace(4000);
// One has found a peer missing: it has waited for that already.
constexpr std::chrono::milliseconds grace_of_missing(1000);
// One has died without a word: nothing that another could say is nearer to the cause.
constexpr std::chrono::milliseconds grace_of_death(200);

std::chrono::milliseconds grace_after(const Failure& failure) {
  if (failure.kind == "Killed") return grace_of_death;
  return failure.kind == "PeerError" ? grace_of_missing : usual_grace;
}

class Pipe {
 public:
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    read_ = ends[0];
    write_ = ends[1];
  }
  Pipe(Pipe&& other) noexcept
      : read_(std::exchange(other.read_, -1)), write_(std::exchange(other.write_, -1)) {}
  Pipe& operator=(Pipe&&) = delete;
  ~Pipe() {
    close_reader();
    close_writer();
  }
  int reader() const { return read_; }
  int writer() const { return write_; }
  void close_reader() { close_end(read_); }
  void close_writer() { close_end(write_); }

 private:
  static void close_end(int& fd) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
  int read_ = -1;
  int write_ = -1;
};

// A message of a child: 'R' and its result, or 'E' and a failure in JSON. It is complete when the pipe
// ends and the child's exit code is 0.
void send_message(int fd, char kind, const std::string& text) {
  const std::string message = kind + text;
  for (std::size_t done = 0; done < message.size();) {
    const ssize_t n = write(fd, message.data() + done, message.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(1);  // the parent has gone
    done += static_cast<std::size_t>(n);
  }
}

int rank_main(const RankFunction& function, int rank, int ranks, int port, SharedBlock& shared, int out) {
  try {
    set_rank_environment(rank, ranks, port);
    std::string result;
    {
      RankContext context{Group::from_environment(), rank, ranks, Launch::processes, shared.data(), nullptr};
      context.leave = [out](const std::string& last) {
        send_message(out, 'R', last);
        _exit(0);
      };
      result = function(context);
    }
    send_message(out, 'R', result);
  } catch (...) {
    const Failure failure = current_failure(rank);
    const nlohmann::json object = {
        {"kind", failure.kind}, {"message", failure.message}, {"rank", failure.rank}, {"echo", failure.echo}};
    send_message(out, 'E', object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return 0;
}

std::optional<Failure> failure_of(const Child& child, const std::string& message, bool ended_by_us) {
  if (ended_by_us && WIFSIGNALED(child.status) && WTERMSIG(child.status) == SIGKILL) {
    return Failure{"PeerError",
                   fmt::format("the process of rank {} did not end by itself after another rank had failed",
                               child.rank),
                   child.rank, true};
  }
  if (!WIFEXITED(child.status) || WEXITSTATUS(child.status) != 0) {
    return Failure{"Killed",
                   fmt::format("the process of rank {} {}", child.rank, describe_status(child.status)),
                   child.rank};
  }
  if (message.starts_with('R')) return std::nullopt;
  const auto object = nlohmann::json::parse(message.empty() ? "" : message.substr(1), nullptr, false);
  if (!object.is_object()) {
    return Failure{"Killed", fmt::format("the process of rank {} ended without a result", child.rank),
                   child.rank};
  }
  return Failure{object.value("kind", "SystemError"), object.value("message", ""),
                 object.value("rank", child.rank), object.value("echo", false)};
}

// The parent's side: collects messages until every pipe has ended and every child is gone.
class Collector {
 public:
  Collector(Children& children, SignalTap& tap, std::vector<Pipe>& pipes)
      : children_(children), tap_(tap), pipes_(pipes), messages_(pipes.size()) {}

  void collect(std::vector<std::optional<Failure>>& failures) {
    while (children_.running() > 0 || open_pipes() > 0) {
      wait_a_little();
      for (std::size_t r = 0; r < pipes_.size(); ++r) read_some(r);
      for (const Child* child : children_.reap()) {
        while (pipes_[child->rank].reader() >= 0) read_some(static_cast<std::size_t>(child->rank));
        failures[child->rank] = failure_of(*child, messages_[child->rank], ended_by_us_);
        if (failures[child->rank]) end_within(grace_after(*failures[child->rank]));
      }
      if (const int number = tap_.next()) {
        signal_ = number;
        children_.signal(number);
        end_within(usual_grace);
      }
      if (grace_end_ && Clock::now() > *grace_end_) {
        ended_by_us_ = true;
        children_.signal(SIGKILL);
      }
    }
  }

  int signal() const { return signal_; }
  std::vector<std::string> results() && {
    for (auto& message : messages_) message.erase(0, 1);
    return std::move(messages_);
  }

 private:
  int open_pipes() const {
    int count = 0;
    for (const Pipe& pipe : pipes_) count += pipe.reader() >= 0 ? 1 : 0;
    return count;
  }

  void end_within(std::chrono::milliseconds grace) {
    grace_end_ = std::min(grace_end_.value_or(Clock::time_point::max()), Clock::now() + grace);
  }

  void wait_a_little() {
    std::vector<pollfd> fds{{tap_.fd(), POLLIN, 0}};
    for (const Pipe& pipe : pipes_) {
      if (pipe.reader() >= 0) fds.push_back({pipe.reader(), POLLIN, 0});
    }
    poll(fds.data(), fds.size(), grace_end_ ? 50 : 1000);
  }

  void read_some(std::size_t rank) {
    static std::vector<char> part(std::size_t{1} << 16);
    if (pipes_[rank].reader() < 0) return;
    const ssize_t n = read(pipes_[rank].reader(), part.data(), part.size());
    if (n > 0) messages_[rank].append(part.data(), static_cast<std::size_t>(n));
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) pipes_[rank].close_reader();
  }

  Children& children_;
  SignalTap& tap_;
  std::vector<Pipe>& pipes_;
  std::vector<std::string> messages_;
  std::optional<Clock::time_point> grace_end_;
  bool ended_by_us_ = false;
  int signal_ = 0;
};

}  // namespace

std::vector<std::string> run_processes(const RankFunction& function, int ranks, SharedBlock& shared,
                                       std::vector<std::optional<Failure>>& failures) {
  const int port = free_port();
  std::vector<Pipe> pipes(static_cast<std::size_t>(ranks));
  std::optional<SignalTap> tap(std::in_place);
  Children children;
  for (int r = 0; r < ranks; ++r) {
    children.spawn(r, false, [&, r] {
      for (Pipe& pipe : pipes) pipe.close_reader();
      for (int other = 0; other < ranks; ++other) {
        if (other != r) pipes[other].close_writer();
      }
      return rank_main(function, r, ranks, port, shared, pipes[r].writer());
    });
  }
  for (Pipe& pipe : pipes) {
    pipe.close_writer();
    fcntl(pipe.reader(), F_SETFL, O_NONBLOCK);
  }
  Collector collector(children, *tap, pipes);
  collector.collect(failures);
  tap.reset();
  if (collector.signal() != 0) {
    ::signal(collector.signal(), SIG_DFL);
    raise(collector.signal());
  }
  return std::move(collector).results();
}

}  // namespace sluice::cli
