// What all commands of the program have in common: bad usage, common flags, how a command is run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <sluice/options.h>

#include "cli/decisions.h"
#include "cli/launch.h"

namespace sluice::cli {

// Bad usage found after parsing; exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum ExitCode : int { kDone = 0, kFailed = 1, kBadUsage = 2 };

struct CommonFlags {
  int ranks = 0;  // 0: the command's own default
  Launch launch = Launch::threads;
  std::string engine;
  std::uint64_t seed = 1;
  bool json = false;
  int deadline_ms = 100'000;
};

// --ranks --launch --engine --seed --json --deadline-ms. `flags` holds the defaults.
void add_common_flags(CLI::App& app, CommonFlags& flags);

// A command: adds itself to the program; `run` is called when it was chosen and returns the exit code.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};
Command add_demo(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_check(CLI::App& program);
Command add_info(CLI::App& program);
Command add_run(CLI::App& program);
Command add_routing(CLI::App& program);

// For an option whose value is one of `names`.
template <class Enum>
void add_choice(CLI::App& app, const std::string& flag, Enum& value, const std::vector<std::pair<std::string, Enum>>& names,
                const std::string& help) {
  std::vector<std::string> allowed;
  std::string shown;
  for (const auto& [name, choice] : names) {
    allowed.push_back(name);
    shown += (shown.empty() ? "" : "|") + name;
  }
  app.add_option_function<std::string>(
         flag,
         [&value, names](const std::string& text) {
           for (const auto& [name, choice] : names) {
             if (name == text) value = choice;
           }
         },
         help)
      ->check(CLI::IsMember(allowed).description(""))
      ->type_name(shown);
}

// The router decisions of a command: a file, or a model that generates them.
struct RoutingSource {
  std::string text;                // as given to --routing
  std::optional<Decisions> file;
};

// Nearest of `names` to `text`, empty when none is near.
std::string nearest(const std::string& text, const std::vector<std::string>& names);

// One sentence for a failed parse of `argv`, with the nearest right flag.
std::string usage_sentence(const CLI::App& program, const CLI::ParseError& error, const std::vector<std::string>& arguments);

}  // namespace sluice::cli
