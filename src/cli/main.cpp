// sluice: the command-line program.
#include <fmt/format.h>
#include <signal.h>
#include <sluice/version.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/run.h"
#include "cli/say.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

bool wants_json(const std::vector<std::string>& arguments) {
  for (const auto& argument : arguments) {
    if (argument == "--") return false;
    if (argument == "--json") return true;
  }
  return false;
}

int report_bad_usage(const std::string& command, const std::string& sentence, bool json) {
  say("sluice{}{}: {}\n", command.empty() ? "" : " ", command, sentence);
  if (json) print_line(error_record({"UsageError", sentence, -1}));
  return exit_bad_usage;
}

int report_failure(const std::string& command, const Failure& failure, bool json) {
  say("sluice {}: {}: {}\n", command, failure.kind, failure.message);
  if (json) print_line(error_record(failure));
  return exit_failed;
}

int run_command(const Command& command, bool json) {
  const std::string name = command.app->get_name();
  try {
    return command.run();
  } catch (const UsageError& error) {
    return report_bad_usage(name, error.what(), json);
  } catch (...) {
    return report_failure(name, current_failure(-1), json);
  }
}

int program(int argc, char** argv) {
  remember_command(argc, argv);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments.front() == "run")
    return run_main({arguments.begin() + 1, arguments.end()});
  CLI::App app("Sluice: tokens of a mixture-of-experts layer to the ranks of their experts, and back.",
               "sluice");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("sluice ") + version());
  const std::vector<Command> commands{add_demo(app), add_bench(app), add_check(app),
                                      add_info(app), add_run(app),   add_routing(app),
                                      add_trace(app),  add_doctor(app)};
  const bool json = wants_json(arguments);
  if (const std::string wrong = empty_value(arguments); !wrong.empty())
    return report_bad_usage(arguments.front().starts_with('-') ? "" : arguments.front(), wrong, json);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    return report_bad_usage(chosen.empty() ? "" : chosen.front()->get_name(),
                            usage_sentence(app, error, arguments), json);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return run_command(command, json);
  }
  return exit_bad_usage;
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // a reader that leaves is a failed write, not a death
  const int code = sluice::cli::program(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fputs("sluice: the result could not be written to standard output\n", stderr);
  return code == 0 ? sluice::cli::exit_failed : code;
}
