// `sluice check`: the library's promises on this machine, one line each.
#include "cli/check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <memory>

#include "cli/engine_views.h"
#include "cli/json.h"
#include "cli/say.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

enum class Status { pass, fail, skip };
constexpr const char* status_names[] = {"pass", "fail", "skip"};

struct Verdict {
  Status status = Status::pass;
  std::string reason;
  double ms = 0;
};

// "pass\n", "fail\nREASON", "skip\nREASON"
std::string check_as_rank(const Promise& promise, RankContext& ranks, const CommonFlags& flags) {
  try {
    take_gpu(flags, ranks);
    CheckContext context{ranks, flags};
    promise.check(context);
    return "pass\n";
  } catch (const Skip& skip) {
    return std::string("skip\n") + skip.what();
  } catch (const Broken& broken) {
    return fmt::format("fail\nrank {}: {}", ranks.rank, broken.what());
  } catch (...) {
    const Failure failure = current_failure(ranks.rank);
    // A peer's error is mostly the echo of a failure that another rank reports: "late" sorts it behind.
    return fmt::format("{}\nrank {}: {}: {}", failure.kind == "PeerError" ? "late" : "fail", ranks.rank,
                       failure.kind, failure.message);
  }
}

Verdict verdict_of(const std::vector<std::string>& results) {
  Verdict verdict;
  for (const char* word : {"fail\n", "late\n", "skip\n"}) {
    for (const auto& result : results) {
      if (!result.starts_with(word)) continue;
      verdict.status = word[0] == 's' ? Status::skip : Status::fail;
      verdict.reason = result.substr(5);
      return verdict;
    }
  }
  return verdict;
}

Verdict check(const Promise& promise, Launcher& launcher, const CommonFlags& flags) {
  if (!promise.check) return {Status::skip, promise.reason, 0};
  const auto begin = Clock::now();
  Verdict verdict;
  try {
    verdict =
        verdict_of(launcher.run([&](RankContext& ranks) { return check_as_rank(promise, ranks, flags); }));
  } catch (const LaunchError& error) {
    verdict = {Status::fail, error.failure().message, 0};
  }
  verdict.ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  return verdict;
}

Json check_record(const Promise& promise, const Verdict& verdict, const Launcher& launcher,
                  const std::string& engine) {
  Json record = make_record("check");
  record["promise"] = promise.id;
  record["name"] = promise.name;
  record["engine"] = engine;
  record["launch"] = name_of(launcher.launch());
  record["ranks"] = launcher.ranks();
  record["status"] = status_names[static_cast<int>(verdict.status)];
  record["reason"] = verdict.reason.empty() ? Json(nullptr) : Json(verdict.reason);
  record["ms"] = verdict.ms;
  return record;
}

// Asked for by name, an engine that cannot run is an error, not a list of failed promises.
void require_usable(const std::string& asked) {
  for (const EngineInfo& engine : engines()) {
    if (engine.name == asked && engine.usable) return;
    if (engine.name == asked)
      throw SystemError(fmt::format("engine {} is not usable here: {}", asked, engine.reason));
  }
  throw SystemError(fmt::format("engine {} is not part of this build", asked));
}

void print_verdict(const Promise& promise, const Verdict& verdict) {
  fmt::print("{:<4} {}  {}{}{}\n", promise.id, status_names[static_cast<int>(verdict.status)], promise.name,
             verdict.reason.empty() ? "" : ": ", verdict.reason);
  std::fflush(stdout);
}

void print_summary(const int (&counts)[3], bool json) {
  if (!json) {
    fmt::print("{} passed, {} failed, {} skipped\n", counts[0], counts[1], counts[2]);
    return;
  }
  Json record = make_record("check");
  record["summary"] = true;
  record["passed"] = counts[0];
  record["failed"] = counts[1];
  record["skipped"] = counts[2];
  print_line(record);
}

// The names in capitals; a name that is no promise is bad usage, not a check of nothing.
std::vector<std::string> known_promises(std::vector<std::string> only) {
  std::vector<std::string> known;
  for (const Promise& promise : all_promises()) known.push_back(promise.id);
  for (std::string& name : only) {
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(fmt::format("--only: {} is no promise; there are {}", name, fmt::join(known, ", ")));
  }
  return only;
}

int run_check(const CommonFlags& flags, const std::vector<std::string>& given) {
  const std::vector<std::string> only = known_promises(given);
  Launcher launcher(flags.launch, flags.ranks, flags.default_ranks, flags.meeting_ms());
  // Asked in the ranks' processes: this one must not start CUDA before it forks.
  launcher.run([&](RankContext&) {
    require_usable(flags.engine);
    return std::string();
  });
  if (launcher.prints() && !flags.json)
    fmt::print("{}, engine {}\n", ranks_as(launcher.ranks(), launcher.launch()), flags.engine);
  int counts[3] = {0, 0, 0};
  const bool progress = isatty(STDERR_FILENO) != 0 && launcher.prints();
  for (const Promise& promise : all_promises()) {
    if (!only.empty() && std::find(only.begin(), only.end(), promise.id) == only.end()) continue;
    if (progress) say("\r\033[K{} ...", promise.id);
    const Verdict verdict = check(promise, launcher, flags);
    if (progress) say("\r\033[K");
    ++counts[static_cast<int>(verdict.status)];
    if (!launcher.prints()) continue;
    flags.json ? print_line(check_record(promise, verdict, launcher, flags.engine))
               : print_verdict(promise, verdict);
  }
  if (launcher.prints()) print_summary(counts, flags.json);
  return counts[static_cast<int>(Status::fail)] == 0 ? exit_done : exit_failed;
}

}  // namespace

std::vector<Promise> all_promises() {
  std::vector<Promise> list;
  add_value_promises(list);
  add_shape_promises(list);
  add_call_promises(list);
  add_failure_promises(list);
  return list;
}

Command add_check(CLI::App& program) {
  auto flags = std::make_shared<CommonFlags>();
  auto only = std::make_shared<std::vector<std::string>>();
  CLI::App* app =
      program.add_subcommand("check", "Test the promises of the library on this machine, one line each");
  add_common_flags(*app, *flags);
  app->add_option("--only", *only, "Only these promises (docs/promises.md), for example V1,C6")
      ->delimiter(',');
  return {app, [flags, only] { return run_check(*flags, *only); }};
}

}  // namespace sluice::cli
