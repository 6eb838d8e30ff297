#include "registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace conformance {
namespace {

struct Entry {
  const char* suite;
  const char* name;
  Sweep sweep;
  void (*body)(const At&);
};

std::vector<Entry>& entries() {
  static std::vector<Entry> list;
  return list;
}

class Run : public testing::Test {
 public:
  Run(void (*body)(const At&), At at) : body_(body), at_(std::move(at)) {}
  void TestBody() override { body_(at_); }

 private:
  void (*body_)(const At&);
  At at_;
};

// Each process on a GPU has a context of its own, of some hundred megabytes.
constexpr int most_processes_on_a_gpu = 8;

bool fits(Where where, const Place& place, int ranks) {
  const bool threads = place.launch == Launch::threads;
  if (place.engine == "cuda" && !threads && ranks > most_processes_on_a_gpu) return false;
  return where == Where::everywhere || (where == Where::threads) == threads;
}

// A run beside the full one (SLUICE_REDUCED: under a sanitizer, on another SIMD target) takes one number
// of ranks of each test, 3 where it can.
std::vector<int> ranks_of(const Sweep& sweep) {
  static const bool reduced = std::getenv("SLUICE_REDUCED") != nullptr;
  if (!reduced || sweep.ranks.size() < 2) return sweep.ranks;
  const bool three = std::find(sweep.ranks.begin(), sweep.ranks.end(), 3) != sweep.ranks.end();
  return {three ? 3 : sweep.ranks[1]};
}

}  // namespace

Registered::Registered(const char* suite, const char* name, Sweep sweep, void (*body)(const At&)) {
  entries().push_back({suite, name, std::move(sweep), body});
}

void register_all() {
  for (const Entry& entry : entries())
    for (const Place& place : places())
      for (int ranks : ranks_of(entry.sweep)) {
        if (!fits(entry.sweep.where, place, ranks)) continue;
        // ThreadSanitizer does not see that another process orders two accesses of this one.
        if (thread_sanitizer && place.launch == Launch::processes) continue;
        const At at{place, ranks};
        const std::string name =
            std::string(entry.name) + "/" + name_of(place) + "_R" + std::to_string(ranks);
        auto* body = entry.body;
        testing::RegisterTest(entry.suite, name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                              [body, at]() -> testing::Test* { return new Run(body, at); });
      }
}

}  // namespace conformance
