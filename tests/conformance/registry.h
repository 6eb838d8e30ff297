// Tests named after a promise, run at every place and number of ranks: `V1.each_token.../cpu_threads_R4`.
#pragma once

#include <string>
#include <vector>

#include "harness.h"

namespace conformance {

enum class Where { everywhere, threads, processes };

struct Sweep {
  std::vector<int> ranks{2};
  Where where = Where::everywhere;
};

// One run of a test.
struct At {
  Place place;
  int ranks = 1;
};

struct Registered {
  Registered(const char* suite, const char* name, Sweep sweep, void (*body)(const At&));
};

// Hands all tests to GoogleTest. Called by main, once.
void register_all();

inline const std::vector<int> all_sizes{1, 2, 3, 4, 5, 7, 8, 12, 16};

}  // namespace conformance

#define PROMISE(suite, name, ...)                                                              \
  static void suite##_##name(const conformance::At& at);                                       \
  static const conformance::Registered registered_##suite##_##name{#suite, #name, __VA_ARGS__, \
                                                                   suite##_##name};            \
  static void suite##_##name([[maybe_unused]] const conformance::At& at)
