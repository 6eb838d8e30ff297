// Runs one body on every rank of a group, ranks as threads or as processes, on any engine. Everything
// runs in forked children, so that a hang or a crash of the library is a failed test and not a stuck suite.
#pragma once

#include <gtest/gtest.h>
#include <sluice/sluice.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sanitizers.h"

namespace conformance {

enum class Launch { threads, processes };

// Where a test runs. A new engine adds its lines to places().
struct Place {
  std::string engine;
  Launch launch = Launch::threads;
};

// SLUICE_TEST_ENGINE=cuda: the CUDA engine alone, else the CPU's.
std::vector<Place> places();
std::string name_of(const Place& place);

// What the body gets: one rank of a group. EXPECT_* and ASSERT_* in the thread that runs the body, and
// exceptions that leave it, fail the test with the rank's number.
struct Rank {
  sluice::Group group;
  std::string engine;
  Launch launch = Launch::threads;
  int rank = 0;
  int size = 1;
};

using RankBody = std::function<void(Rank&)>;

struct RunOptions {
  int timeout_s = 90;
  // Ranks whose process may be killed or never end; they are killed once all others are gone.
  std::vector<int> lost;
  // How long a process may live on after its body has ended.
  int leave_s = 5;
  // Every rank is a process that makes no group of its own: the body calls Group::from_environment.
  bool no_group = false;
};

// The test fails unless every rank ends its body and its process exits with code 0 in time.
void run_ranks(const Place& place, int ranks, const RankBody& body, const RunOptions& options = {});

// Runs a body in one forked child, no group.
void run_alone(const std::function<void()>& body, const RunOptions& options = {});

// SLUICE_LONG=1: the long forms of the tests.
bool long_runs();

// SLUICE_TEST_SLOWER: factor for time-outs, for sanitizers and valgrind. 1 when not set.
int slower();

// Whether the body of this rank has failed already: loops end early.
bool failed_here();

// What `body` finds wrong in this thread, as text: for threads that a body starts itself.
std::string failures_of(const std::function<void()>& body);

// Whether this program was built with ThreadSanitizer, or with any sanitizer that has its own heap.
inline constexpr bool thread_sanitizer = SLUICE_THREAD_SANITIZER;
inline constexpr bool sanitized = SLUICE_SANITIZED;

// How many files a folder has: the descriptors or threads of this process, in /proc/self/fd or task.
std::int64_t entries_in(const char* folder);

// Milliseconds on the monotonic clock.
double now_ms();
void sleep_ms(double ms);

// Runs `call`, which must throw an `E` whose message holds every one of `parts`. Returns the message.
template <class E, class F>
std::string expect_error(F&& call, const std::vector<std::string>& parts = {}) {
  try {
    call();
  } catch (const E& error) {
    const std::string message = error.what();
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
    return message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace conformance
