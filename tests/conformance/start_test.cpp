// F4 and F5: a communicator whose threads cannot all be started.
#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>

#include <fstream>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

constexpr std::int64_t stack_bytes = std::int64_t{1} << 30;

// From now on a thread of this process takes `stack_bytes` of address space.
void make_threads_large() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

// Leaves address space for so many more threads; negative: for all.
void allow_threads(int n) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur =
      n < 0 ? limit.rlim_max : static_cast<rlim_t>(pages * 4096 + stack_bytes * n + stack_bytes / 2);
  setrlimit(RLIMIT_AS, &limit);
}

int entries(const char* folder) {
  int n = 0;
  DIR* dir = opendir(folder);
  while (dir != nullptr && readdir(dir) != nullptr) ++n;
  if (dir != nullptr) closedir(dir);
  return n;
}

Recipe base(const At& at) {
  Recipe recipe;
  recipe.ranks = at.ranks;
  recipe.experts = 4 * at.ranks;
  recipe.tokens = {12, 5, 17};
  return recipe;
}

// One more thread each time, until they are enough: two helpers, two lanes and the one that watches for
// peers.
PROMISE(F4, threads_that_cannot_be_started_are_one_error_and_leave_nothing, {{1}, Where::processes}) {
  if (sanitized) GTEST_SKIP() << "a sanitizer takes address space of its own for each thread";
  if (on_cuda()) GTEST_SKIP() << "the CUDA driver takes address space and threads of its own";
  const Job job(base(at));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.workers = 3;
    make_threads_large();
    int errors = 0;
    for (int threads = 0; threads < 10; ++threads) {
      const int tasks = entries("/proc/self/task"), files = entries("/proc/self/fd");
      allow_threads(threads);
      try {
        sluice::Communicator comm(self.group, options);
        allow_threads(-1);
        round_trip(comm, job, self.rank, {});
        break;
      } catch (const sluice::SystemError& error) {
        ++errors;
        EXPECT_NE(std::string(error.what()).find("thread"), std::string::npos) << error.what();
      }
      allow_threads(-1);
      EXPECT_EQ(entries("/proc/self/task"), tasks) << threads << " threads allowed";
      EXPECT_EQ(entries("/proc/self/fd"), files) << threads << " threads allowed";
    }
    EXPECT_EQ(errors, 5);
  });
}

// One rank alone cannot: its peers are told in the same creation, and the next one works.
PROMISE(F5, a_rank_that_cannot_start_its_threads_is_told_to_its_peers_at_once, {{2, 3}, Where::processes}) {
  if (sanitized) GTEST_SKIP() << "a sanitizer takes address space of its own for each thread";
  if (on_cuda()) GTEST_SKIP() << "the CUDA driver takes address space and threads of its own";
  const Job job(base(at));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.workers = 2;
    for (int threads = 0; threads < 4; ++threads) {
      SCOPED_TRACE(std::to_string(threads) + " threads allowed");
      if (self.rank == 1) make_threads_large();
      if (self.rank == 1) allow_threads(threads);
      const double start = now_ms();
      const auto create = [&] { sluice::Communicator comm(self.group, options); };
      if (self.rank == 1)
        expect_error<sluice::SystemError>(create, {"thread"});
      else
        expect_error<sluice::PeerError>(create, {"rank 1"});
      EXPECT_LT(now_ms() - start, 3000.0 * slower());
      if (self.rank == 1) allow_threads(-1);
    }
    run_job(self, job);
  });
}

}  // namespace
}  // namespace conformance
