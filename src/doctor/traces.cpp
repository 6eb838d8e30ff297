#include "doctor/traces.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sluice/errors.h>

namespace sluice::doctor {

namespace {

namespace fs = std::filesystem;

std::int64_t time_in_operations(const RankTrace& trace) {
  std::int64_t sum = 0;
  for (const OperationTrace& op : trace.operations) sum += std::max<std::int64_t>(0, op.end_ns - op.begun_ns);
  return sum;
}

std::string longest(const std::map<std::string, std::int64_t>& times) {
  const auto shorter = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(times.begin(), times.end(), shorter)->first;
}

// Times of two machines cannot be compared.
void refuse_other_clocks(const std::vector<RankTrace>& traces, const std::string& where) {
  for (const RankTrace& trace : traces) {
    const RankTrace& first = traces.front();
    if (trace.boot_id == first.boot_id) continue;
    throw ArgumentError(fmt::format("\"{}\": rank {} ran on {} and rank {} on {}, or before and after a restart: their clocks "
                                    "cannot be compared; give the traces of one machine",
                                    where, first.rank, first.host, trace.rank, trace.host));
  }
}

// A rank that is there twice would be judged against itself.
void refuse_doubles(const Traces& traces, const std::string& where) {
  for (std::size_t i = 1; i < traces.of.size(); ++i) {
    if (traces.of[i].rank == traces.of[i - 1].rank)
      throw ArgumentError(fmt::format("\"{}\": rank {} of communicator {} has two traces; remove one", where, traces.of[i].rank, traces.communicator));
  }
}

std::vector<std::string> files_to_read(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw ArgumentError(fmt::format("\"{}\" is no folder; name the one that SLUICE_TRACE or trace_dir named when the traced program ran", folder));
  std::vector<std::string> files = trace_files(folder, error);
  if (error) throw ArgumentError(fmt::format("\"{}\" cannot be read: {}", folder, error.message()));
  return files;
}

}  // namespace

std::vector<std::string> trace_files(const std::string& folder, std::error_code& error) {
  std::vector<std::string> paths;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().extension() == ".trace") paths.push_back(entries->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Traces choose_traces(std::vector<RankTrace> all, const std::string& communicator, const std::string& where) {
  if (all.empty())
    throw ArgumentError(fmt::format("\"{}\" holds no trace; run the program with SLUICE_TRACE={} in its environment", where, where));
  std::erase_if(all, [](const RankTrace& trace) { return trace.communicator.empty(); });
  if (all.empty()) throw ArgumentError(fmt::format("\"{}\" holds only traces of communicators that were never made", where));
  std::map<std::string, std::int64_t> times;
  for (const RankTrace& trace : all) times[trace.communicator] += time_in_operations(trace);
  std::vector<std::string> names;
  for (const auto& [name, time] : times) names.push_back(name);
  Traces traces;
  traces.communicator = communicator.empty() ? longest(times) : communicator;
  if (!times.contains(traces.communicator))
    throw ArgumentError(fmt::format("\"{}\" holds no trace of a communicator {}; it holds {}", where, communicator, fmt::join(names, ", ")));
  for (const std::string& name : names) {
    if (name != traces.communicator) traces.others.push_back(name);
  }
  for (RankTrace& trace : all) {
    if (trace.communicator == traces.communicator) traces.of.push_back(std::move(trace));
  }
  std::sort(traces.of.begin(), traces.of.end(), [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
  refuse_other_clocks(traces.of, where);
  refuse_doubles(traces, where);
  std::set<int> there;
  for (const RankTrace& trace : traces.of) {
    traces.ranks = std::max({traces.ranks, trace.ranks, trace.rank + 1});
    there.insert(trace.rank);
  }
  for (int r = 0; r < traces.ranks; ++r) {
    if (!there.contains(r)) traces.missing.push_back(r);
  }
  return traces;
}

Traces load_traces(const std::string& folder, const std::string& communicator) {
  std::vector<RankTrace> all;
  std::vector<std::string> unread;
  for (const std::string& file : files_to_read(folder)) {
    try {
      all.push_back(read_trace(file));
    } catch (const Error& error) {
      unread.push_back(error.what());
    }
  }
  if (all.empty() && !unread.empty()) throw ArgumentError(unread.front());
  Traces traces = choose_traces(std::move(all), communicator, folder);
  traces.unread = std::move(unread);
  return traces;
}

}  // namespace sluice::doctor
