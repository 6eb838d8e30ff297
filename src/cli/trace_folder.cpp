#include "cli/trace_folder.h"

#include <fmt/format.h>
#include <sluice/errors.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "cli/routing_file.h"
#include "doctor/traces.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

struct TraceFile {
  std::string path;
  RankTrace trace;
};

std::vector<std::string> files_to_read(const std::string& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) throw FileError(fmt::format("folder \"{}\" cannot be read: {}", folder, error ? error.message() : "it does not exist"));
  if (!fs::is_directory(status)) throw FileError(fmt::format("\"{}\" is not a folder; name the one that --trace or SLUICE_TRACE named", folder));
  std::vector<std::string> paths = doctor::trace_files(folder, error);
  if (error) throw FileError(fmt::format("folder \"{}\" cannot be read: {}", folder, error.message()));
  if (paths.empty()) {
    throw FileError(fmt::format("folder \"{}\" holds no file NAME.trace; run what is to be traced with SLUICE_TRACE={}", folder, folder));
  }
  return paths;
}

RankTrace read_one(const std::string& path) {
  try {
    return read_trace(path);
  } catch (const Error& error) {
    throw FileError(error.what());
  }
}

void require_one_clock(const TraceFile& a, const TraceFile& b) {
  if (a.trace.boot_id == b.trace.boot_id) return;
  throw FileError(fmt::format("\"{}\" (host {}) and \"{}\" (host {}) were not written by one machine between two of its starts, so "
                              "their clocks cannot be compared; put them into folders of their own",
                              a.path, a.trace.host, b.path, b.trace.host));
}

void require_one_of_each(const TraceFile& a, const TraceFile& b) {
  if (a.trace.communicator != b.trace.communicator) return;
  if (a.trace.rank == b.trace.rank) {
    throw FileError(fmt::format("\"{}\" and \"{}\" are both of rank {} of communicator {}; remove one", a.path, b.path, a.trace.rank,
                                a.trace.communicator));
  }
  if (a.trace.ranks != b.trace.ranks) {
    throw FileError(fmt::format("\"{}\" is of a communicator of {} ranks, \"{}\" of the same one and {} ranks; one of them is broken", a.path,
                                a.trace.ranks, b.path, b.trace.ranks));
  }
}

// Of the rank that was the first to make it.
std::int64_t made_ns(const TracedCommunicator& communicator) {
  std::int64_t first = communicator.ranks.front().made_ns;
  for (const RankTrace& rank : communicator.ranks) first = std::min(first, rank.made_ns);
  return first;
}

}  // namespace

TraceFolder read_trace_folder(const std::string& folder) {
  std::vector<TraceFile> files;
  for (const std::string& path : files_to_read(folder)) {
    files.push_back({path, read_one(path)});
    require_one_clock(files.front(), files.back());
  }
  TraceFolder all;
  all.never_made = static_cast<int>(std::erase_if(files, [](const TraceFile& file) { return file.trace.communicator.empty(); }));
  std::sort(files.begin(), files.end(), [](const TraceFile& a, const TraceFile& b) {
    return std::tie(a.trace.communicator, a.trace.rank) < std::tie(b.trace.communicator, b.trace.rank);
  });
  for (std::size_t i = 1; i < files.size(); ++i) require_one_of_each(files[i - 1], files[i]);
  for (TraceFile& file : files) {
    if (all.communicators.empty() || all.communicators.back().name != file.trace.communicator)
      all.communicators.push_back({file.trace.communicator, file.trace.ranks, {}});
    all.communicators.back().ranks.push_back(std::move(file.trace));
  }
  std::stable_sort(all.communicators.begin(), all.communicators.end(),
                   [](const TracedCommunicator& a, const TracedCommunicator& b) { return made_ns(a) < made_ns(b); });
  return all;
}

}  // namespace sluice::cli
