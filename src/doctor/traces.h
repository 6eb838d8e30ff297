// The traces of one communicator, from a folder.
#pragma once

#include <string>
#include <system_error>
#include <vector>

#include <sluice/trace.h>

namespace sluice::doctor {

// The paths of all *.trace files of a folder, sorted. `error` says why it could not be read, if so.
std::vector<std::string> trace_files(const std::string& folder, std::error_code& error);

struct Traces {
  std::string communicator;
  int ranks = 0;
  std::vector<RankTrace> of;        // by rank, those that are there
  std::vector<int> missing;
  std::vector<std::string> others;  // communicators of the same folder that are not looked at
  std::vector<std::string> unread;  // files that are no traces, a sentence each
};

// All *.trace files of `folder`. Of several communicators the one with the most time in operations, or the one that is
// named; those that were never made are left out. Throws ArgumentError, a sentence: no such folder, no traces, no such communicator, machines whose clocks differ.
Traces load_traces(const std::string& folder, const std::string& communicator = "");

// The same for traces that are read already; `where` is for the sentence.
Traces choose_traces(std::vector<RankTrace> all, const std::string& communicator, const std::string& where);

}  // namespace sluice::doctor
