// Runs one function as R ranks: threads of this process, child processes, or this process as one rank
// of a job that something else has started.
#pragma once

#include <sluice/group.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice::cli {

enum class Launch { threads, processes, env };

const char* name_of(Launch launch);

// "1 token", "2 tokens".
std::string counted(std::int64_t n, const char* one);

// "4 ranks as threads", "1 rank as a process", "2 ranks, from the environment".
std::string ranks_as(int ranks, Launch launch);

// Why a rank did not finish.
struct Failure {
  std::string kind;  // class of the error: "PeerError", "Killed", ...
  std::string message;
  int rank = -1;  // -1: not one rank's
  bool echo = false;  // of another failure, which says more
};

class LaunchError : public std::runtime_error {
 public:
  explicit LaunchError(Failure failure) : std::runtime_error(failure.message), failure_(std::move(failure)) {}
  const Failure& failure() const noexcept { return failure_; }

 private:
  Failure failure_;
};

// The exception being handled, as a failure of `rank`.
Failure current_failure(int rank);

struct RankContext {
  Group group;
  int rank = 0;
  int size = 1;
  Launch launch = Launch::threads;
  std::byte* shared = nullptr;  // memory common to all ranks, zeroed, page-aligned
  // Launch::processes: hands `result` in and ends this process at once, with nothing destroyed.
  std::function<void(const std::string& result)> leave;
};

// Returns this rank's result, any bytes.
using RankFunction = std::function<std::string(RankContext&)>;

class Launcher {
 public:
  // `ranks` 0 = `fallback`, or for env what the environment says. `meeting_ms`: how long ranks of env wait for all to
  // meet, 0 = without end, -1 = the library's default. Throws UsageError when the
  // environment says something else than `ranks`, and whatever making the group throws.
  Launcher(Launch launch, int ranks, int fallback, int meeting_ms = -1);

  Launch launch() const { return launch_; }
  int ranks() const { return ranks_; }
  // Whether results come to this process: always, except in ranks > 0 of env.
  bool prints() const { return launch_ != Launch::env || env_group_.rank() == 0; }

  // Runs `function` as all ranks and returns their results in rank order (empty where !prints()). All
  // threads and children have ended when it returns or throws. With processes no thread may exist.
  // Throws LaunchError with the failure nearest to the cause: a death before an error of a rank's own,
  // that before a PeerError, an echo last.
  std::vector<std::string> run(const RankFunction& function, std::size_t shared_bytes = 0);

 private:
  Launch launch_;
  int ranks_ = 1;
  Group env_group_;
};

}  // namespace sluice::cli
