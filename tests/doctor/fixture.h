// Traces as text, one JSON array per operation, so that recorded runs can lie beside the tests. Times are kept to the
// nanosecond; an operation's are relative to its call.
#pragma once

#include <string>
#include <vector>

#include <sluice/trace.h>

namespace sluice::doctor::testing {

struct Fixture {
  std::string name;
  std::string verdict;     // the class of the cause that was put in
  int rank = -1;           // whose; -1: nobody's
  std::string cause;       // in words
  std::vector<RankTrace> traces;
};

void write_fixture(const std::string& path, const Fixture& fixture);
Fixture read_fixture(const std::string& path);

}  // namespace sluice::doctor::testing
