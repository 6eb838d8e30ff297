// Records the fixtures beside this file: real runs with a cause put in, each a few operations of several ranks. No
// stamp of an operation is changed. Not run by the tests; `record_fixtures FOLDER [NAME...]` writes FOLDER/NAME.jsonl.
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <thread>

#include <sluice/sluice.h>

#include "doctor/fixture.h"
#include "doctor/recorded_rank.h"
#include "doctor/recorded_runs.h"

namespace sluice::doctor::testing {
namespace {

namespace fs = std::filesystem;

void run_threads(const Run& run, const fs::path& folder) {
  std::vector<Group> groups = Group::threads(run.ranks);
  std::vector<std::jthread> threads;
  for (int r = 0; r < run.ranks; ++r)
    threads.emplace_back([&, r] { play_rank(std::move(groups[static_cast<std::size_t>(r)]), run, folder); });
}

int child_main(const Run& run, const fs::path& folder, int rank) try {
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(run.ranks).c_str(), 1);
  play_rank(Group::from_environment(), run, folder);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s, rank %d: %s\n", run.name, rank, error.what());
  return 1;
}

bool run_processes(const Run& run, const fs::path& folder) {
  for (int r = 0; r < run.ranks; ++r) {
    if (fork() == 0) _exit(child_main(run, folder, r));
  }
  bool well = true;
  int status = 0;
  while (wait(&status) > 0) well = well && status == 0;
  return well;
}

// The newest operations of each rank, those that all ranks have; and the copies since the first of them.
void trim(std::vector<RankTrace>& traces, std::size_t most) {
  for (RankTrace& trace : traces) {
    auto& ops = trace.operations;
    if (ops.size() > most) ops.erase(ops.begin(), ops.end() - static_cast<std::ptrdiff_t>(most));
    std::erase_if(trace.copies, [&](const CopyTrace& copy) { return copy.end_ns < ops.front().called_ns; });
  }
}

Fixture collect(const Run& run, const fs::path& folder) {
  Fixture fixture{run.name, run.verdict, run.culprit, run.cause, {}};
  fixture.traces.resize(static_cast<std::size_t>(run.ranks));
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".trace") continue;
    RankTrace trace = read_trace(entry.path().string());
    std::ifstream copies(folder / copies_name(trace.rank));
    for (CopyTrace copy; copies >> copy.begun_ns >> copy.end_ns >> copy.bytes;) trace.copies.push_back(copy);
    const auto r = static_cast<std::size_t>(trace.rank);
    fixture.traces[r] = std::move(trace);
  }
  // A line has about 130 characters and 16 per rank: 60 KiB hold so many.
  const int lines = 56 * 1024 / (130 + 16 * run.ranks);
  trim(fixture.traces, static_cast<std::size_t>(std::min(40, lines / run.ranks / 2 * 2)));
  return fixture;
}

bool record(const Run& run, const fs::path& to) {
  std::string name = (fs::temp_directory_path() / "sluice-record-XXXXXX").string();
  if (!mkdtemp(name.data())) return false;
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 20000).c_str(), 1);
  bool well = true;
  if (run.processes) {
    well = run_processes(run, name);
  } else {
    run_threads(run, name);
  }
  if (well) write_fixture((to / (std::string(run.name) + ".jsonl")).string(), collect(run, name));
  fs::remove_all(name);
  std::printf("%-32s %s\n", run.name, well ? "recorded" : "FAILED");
  std::fflush(stdout);
  return well;
}

int record_all(const fs::path& to, const std::vector<std::string>& wanted) {
  fs::create_directories(to);
  bool well = true;
  for (const Run& run : recorded_runs()) {
    if (wanted.empty() || std::count(wanted.begin(), wanted.end(), run.name) > 0) well = record(run, to) && well;
  }
  return well ? 0 : 1;
}

}  // namespace
}  // namespace sluice::doctor::testing

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: record_fixtures FOLDER [NAME...]\n");
    return 2;
  }
  return sluice::doctor::testing::record_all(argv[1], {argv + 2, argv + argc});
}
