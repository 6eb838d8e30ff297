// What all commands of the program have in common on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "cli/common_flags.h"

namespace sluice::cli {

// --ranks --launch --engine --seed --json --deadline-ms. `flags` holds the defaults.
void add_common_flags(CLI::App& app, CommonFlags& flags);

// --seed.
void add_seed(CLI::App& app, std::uint64_t& seed, const std::string& help);

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
Command add_trace(CLI::App& program);
Command add_doctor(CLI::App& program);

// For an option whose value is one of `names`.
template <class Enum>
void add_choice(CLI::App& app, const std::string& flag, Enum& value,
                const std::vector<std::pair<std::string, Enum>>& names, const std::string& help) {
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

// What is wrong where a flag is given "", or a list with nothing between two commas; the parser takes the one for 0 and
// leaves out the other. Empty: nothing.
std::string empty_value(const std::vector<std::string>& arguments);

// One sentence for a failed parse of `argv`, with the nearest right flag.
std::string usage_sentence(const CLI::App& program, const CLI::ParseError& error,
                           const std::vector<std::string>& arguments);

}  // namespace sluice::cli
