// The flags that most commands have, bad usage, and exit codes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/launch.h"

namespace sluice::cli {

// Bad usage found after parsing; exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum ExitCode : int { exit_done = 0, exit_failed = 1, exit_bad_usage = 2 };

struct CommonFlags {
  int ranks = 0;  // 0: default_ranks, or with env what the environment says
  int default_ranks = 2;
  Launch launch = Launch::threads;
  std::string engine = "cpu";
  std::uint64_t seed = 1;
  bool json = false;
  int deadline_ms = 100'000;
  bool deadline_given = false;

  // For the meeting of ranks that something else has started; -1: nobody said.
  int meeting_ms() const { return deadline_given ? deadline_ms : -1; }
};

// Nearest of `names` to `text`, empty when none is near.
std::string nearest(const std::string& text, const std::vector<std::string>& names);

}  // namespace sluice::cli
