#include "cli/launch.h"

#include <fmt/format.h>
#include <sluice/errors.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <thread>

#include "cli/common_flags.h"
#include "cli/launch_processes.h"
#include "cli/routing_file.h"
#include "cli/shared_block.h"

namespace sluice::cli {
namespace {

// The lower, the nearer to the cause.
int distance_from_cause(const Failure& failure) {
  if (failure.echo) return 3;
  if (failure.kind == "Killed") return 0;
  return failure.kind == "PeerError" ? 2 : 1;
}

std::vector<std::string> run_threads(const RankFunction& function, int ranks, SharedBlock& shared,
                                     std::vector<std::optional<Failure>>& failures) {
  std::vector<std::string> results(static_cast<std::size_t>(ranks));
  std::vector<Group> groups = Group::threads(ranks);
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        RankContext context{std::move(groups[r]), r, ranks, Launch::threads, shared.data(), nullptr};
        results[r] = function(context);
      } catch (...) {
        failures[r] = current_failure(r);
      }
    });
  }
  threads.clear();
  return results;
}

// Pieces of every rank's result go to all; only rank 0 keeps them.
std::vector<std::string> gather_results(const Group& group, const std::string& mine) {
  constexpr std::size_t piece_bytes = std::size_t{8} << 20;
  std::vector<std::string> results(static_cast<std::size_t>(group.size()));
  for (std::size_t done = 0;; done += piece_bytes) {
    const std::size_t begin = std::min(done, mine.size());
    const std::size_t bytes = std::min(piece_bytes, mine.size() - begin);
    const auto pieces = group.all_gather(std::as_bytes(std::span(mine.data() + begin, bytes)));
    bool more = false;
    for (std::size_t r = 0; r < pieces.size(); ++r) {
      more = more || pieces[r].size() == piece_bytes;
      if (group.rank() == 0)
        results[r].append(reinterpret_cast<const char*>(pieces[r].data()), pieces[r].size());
    }
    if (!more) return group.rank() == 0 ? results : std::vector<std::string>{};
  }
}

}  // namespace

const char* name_of(Launch launch) {
  constexpr const char* names[] = {"threads", "processes", "env"};
  return names[static_cast<int>(launch)];
}

std::string counted(std::int64_t n, const char* one) { return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s"); }

std::string ranks_as(int ranks, Launch launch) {
  const std::string many = counted(ranks, "rank");
  if (launch == Launch::env) return many + ", from the environment";
  if (ranks == 1) return many + (launch == Launch::threads ? " as a thread" : " as a process");
  return fmt::format("{} as {}", many, name_of(launch));
}

Failure current_failure(int rank) {
  try {
    throw;
  } catch (const LaunchError& error) {
    return error.failure();
  } catch (const FileError& error) {
    return {"FileError", error.what(), rank};
  } catch (const Error& error) {
    return {error.kind(), error.what(), error.rank() >= 0 ? error.rank() : rank};
  } catch (const std::bad_alloc&) {
    return {"SystemError", "out of memory", rank};
  } catch (const std::exception& error) {
    return {"SystemError", error.what(), rank};
  } catch (...) {
    return {"SystemError", "an exception of unknown type", rank};
  }
}

Launcher::Launcher(Launch launch, int ranks, int fallback, int meeting_ms)
    : launch_(launch), ranks_(ranks > 0 ? ranks : fallback) {
  // For CUDA, should an engine start it: a queue for every stream, and no first launch that has to load its
  // kernel behind a waiting stream.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  if (launch != Launch::env) return;
  MeetOptions meet;
  if (meeting_ms >= 0) meet.timeout_ms = meeting_ms;
  env_group_ = Group::from_environment(meet);
  ranks_ = env_group_.size();
  if (ranks > 0 && ranks != ranks_) {
    throw UsageError(fmt::format(
        "--ranks {}, but the environment says {}; leave --ranks out with --launch env", ranks, ranks_));
  }
}

std::vector<std::string> Launcher::run(const RankFunction& function, std::size_t shared_bytes) {
  if (launch_ == Launch::env) {
    const SharedBlock shared(shared_bytes, env_group_);
    RankContext context{env_group_, env_group_.rank(), ranks_, launch_, shared.data(), nullptr};
    return gather_results(env_group_, function(context));
  }
  SharedBlock shared(shared_bytes);
  std::vector<std::optional<Failure>> failures(static_cast<std::size_t>(ranks_));
  auto results = launch_ == Launch::threads ? run_threads(function, ranks_, shared, failures)
                                            : run_processes(function, ranks_, shared, failures);
  const std::optional<Failure>* nearest = nullptr;
  for (const auto& failure : failures) {
    if (!failure) continue;
    if (nearest == nullptr || distance_from_cause(*failure) < distance_from_cause(**nearest))
      nearest = &failure;
  }
  if (nearest != nullptr) throw LaunchError(**nearest);
  return results;
}

}  // namespace sluice::cli
