// `sluice trace merge`: the traces of all ranks as one, for Perfetto or Chrome.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>

#include "cli/json.h"
#include "cli/routing_file.h"
#include "cli/say.h"
#include "cli/trace_events.h"
#include "cli/trace_folder.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

struct MergeFlags {
  std::string folder;
  std::string output;
  bool json = false;
};

// A file, or standard output.
class Output {
 public:
  explicit Output(const std::string& path) : path_(path), file_(path == "-" ? stdout : std::fopen(path.c_str(), "w")) {
    if (file_ == nullptr) fail();
  }
  ~Output() {
    if (file_ != nullptr && file_ != stdout) std::fclose(file_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) fail();
  }
  // What is buffered may not find room either.
  void close() {
    std::FILE* const file = std::exchange(file_, nullptr);
    if ((file == stdout ? std::fflush(file) : std::fclose(file)) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw FileError(fmt::format("\"{}\" cannot be written: {}", path_, std::generic_category().message(errno)));
  }

  std::string path_;
  std::FILE* file_;
};

std::string text_of(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace); }

double clock_error_us(const TraceFolder& folder) {
  std::int64_t most = 0;
  for (const TracedCommunicator& communicator : folder.communicators) {
    for (const RankTrace& rank : communicator.ranks) most = std::max(most, rank.clock_error_ns);
  }
  return static_cast<double>(most) / 1000;
}

// One event a line, so that a large trace needs no more memory than its operations.
EventCounts write_trace(const TraceFolder& folder, Output& output) {
  Json about = make_record("trace");
  about["clock_error_us"] = clock_error_us(folder);
  output.write("{\"displayTimeUnit\": \"ns\", \"otherData\": " + text_of(about) + ", \"traceEvents\": [");
  const char* between = "\n";
  const EventCounts counts = write_events(folder, [&](const Json& event) {
    output.write(between + text_of(event));
    between = ",\n";
  });
  output.write("\n]}\n");
  output.close();
  return counts;
}

void tell_what_is_not_there(const TraceFolder& folder, const EventCounts& counts) {
  if (folder.never_made > 0) say("sluice trace: {} files are of communicators that were never made; left out\n", folder.never_made);
  if (counts.lost > 0) say("sluice trace: {} operations are not there, newer ones have overwritten them\n", counts.lost);
  for (const TracedCommunicator& communicator : folder.communicators) {
    const auto there = static_cast<int>(communicator.ranks.size());
    if (there < communicator.size)
      say("sluice trace: of the {} ranks of communicator {} only {} have a file\n", communicator.size, communicator.name, there);
  }
}

Json merge_record(const MergeFlags& flags, const TraceFolder& folder, const EventCounts& counts) {
  Json record = make_record("trace");
  record["file"] = flags.output;
  record["communicators"] = folder.communicators.size();
  record["ranks"] = counts.ranks;
  record["operations"] = counts.operations;
  record["unfinished"] = counts.unfinished;
  record["copies"] = counts.copies;
  record["arrows"] = counts.arrows;
  record["lost"] = counts.lost;
  record["clock_error_us"] = clock_error_us(folder);
  return record;
}

int run_merge(const MergeFlags& flags) {
  if (flags.json && flags.output == "-") throw UsageError("-o - and --json both want standard output; give -o a file name");
  const TraceFolder folder = read_trace_folder(flags.folder);
  Output output(flags.output);
  const EventCounts counts = write_trace(folder, output);
  tell_what_is_not_there(folder, counts);
  if (flags.json) {
    print_line(merge_record(flags, folder, counts));
  } else if (flags.output != "-") {
    fmt::print("{}: {} ranks of {} communicators, {} operations ({} unfinished), {} host copies; open it at ui.perfetto.dev or "
               "chrome://tracing\n",
               flags.output, counts.ranks, folder.communicators.size(), counts.operations, counts.unfinished, counts.copies);
  }
  return exit_done;
}

}  // namespace

Command add_trace(CLI::App& program) {
  auto flags = std::make_shared<MergeFlags>();
  CLI::App* const trace = program.add_subcommand("trace", "Work with what SLUICE_TRACE or --trace have recorded");
  trace->require_subcommand(1);
  CLI::App* const merge = trace->add_subcommand(
      "merge", "Make one trace of all ranks of a folder, for ui.perfetto.dev or chrome://tracing: who was late, and what the time went into");
  merge->add_option("DIR", flags->folder, "Folder of the traces; several communicators are drawn below one another")->required();
  merge->add_option("-o,--output", flags->output, "File to write, or - for standard output")->required();
  merge->add_flag("--json", flags->json, "One JSON object about the file on standard output");
  return {trace, [flags] { return run_merge(*flags); }};
}

}  // namespace sluice::cli
