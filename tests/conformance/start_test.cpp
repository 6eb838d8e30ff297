// F4, F5 and C6: a communicator whose threads cannot all be started, whose window is too large for a limit, or whose
// options are wrong.
#include <pthread.h>
#include <sys/resource.h>

#include <fstream>
#include <string>

#include "drive.h"
#include "file_limit.h"
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

// One more thread each time, until they are enough: two helpers, two lanes and the one that watches for
// peers.
PROMISE(F4, threads_that_cannot_be_started_are_one_error_and_leave_nothing, {{1}, Where::processes}) {
  if (sanitized) GTEST_SKIP() << "a sanitizer takes address space of its own for each thread";
  if (on_cuda()) GTEST_SKIP() << "the CUDA driver takes address space and threads of its own";
  const Job job(small_recipe(at.ranks));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.workers = 3;
    make_threads_large();
    int errors = 0;
    for (int threads = 0; threads < 10; ++threads) {
      const std::int64_t tasks = entries_in("/proc/self/task"), files = entries_in("/proc/self/fd");
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
      EXPECT_EQ(entries_in("/proc/self/task"), tasks) << threads << " threads allowed";
      EXPECT_EQ(entries_in("/proc/self/fd"), files) << threads << " threads allowed";
    }
    EXPECT_EQ(errors, 6);
  });
}

// One rank alone cannot: its peers are told in the same creation, and the next one works.
PROMISE(F5, a_rank_that_cannot_start_its_threads_is_told_to_its_peers_at_once, {{2, 3}, Where::processes}) {
  if (sanitized) GTEST_SKIP() << "a sanitizer takes address space of its own for each thread";
  if (on_cuda()) GTEST_SKIP() << "the CUDA driver takes address space and threads of its own";
  const Job job(small_recipe(at.ranks));
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

PROMISE(C6, wrong_options_are_refused, {{1, 2}}) {
  using Spoil = void (*)(sluice::CommunicatorOptions&);
  const Spoil spoils[] = {
      [](sluice::CommunicatorOptions& o) { o.engine = "abacus"; },
      [](sluice::CommunicatorOptions& o) { o.max_tokens = -1; },
      [](sluice::CommunicatorOptions& o) { o.max_tokens = sluice::limits::max_tokens + 1; },
      [](sluice::CommunicatorOptions& o) { o.experts = 0; },
      [](sluice::CommunicatorOptions& o) { o.experts = 2 * sluice::limits::experts; },
      [](sluice::CommunicatorOptions& o) { o.hidden = 0; },
      [](sluice::CommunicatorOptions& o) { o.topk = -1; },
      [](sluice::CommunicatorOptions& o) { o.topk = 65; },
      [](sluice::CommunicatorOptions& o) { o.channels = 0; },
      [](sluice::CommunicatorOptions& o) { o.channels = 65; },
      [](sluice::CommunicatorOptions& o) { o.deadline_ms = -1; },
      [](sluice::CommunicatorOptions& o) { o.arena_bytes = -1; },
      [](sluice::CommunicatorOptions& o) { o.alignment = 0; },
      [](sluice::CommunicatorOptions& o) { o.capacity = -1; },
      [](sluice::CommunicatorOptions& o) {
        o.first_expert = {0, 5};
        o.experts = 4;
      },
      [](sluice::CommunicatorOptions& o) {
        o.first_expert = {3, 1, 8, 8};
      },
      [](sluice::CommunicatorOptions& o) { o.workers = -1; },
      [](sluice::CommunicatorOptions& o) { o.hidden = 1 << 20; }};
  const Job job(small_recipe(at.ranks, 7));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    int turn = 0;
    for (const Spoil spoil : spoils) {
      SCOPED_TRACE("spoil " + std::to_string(turn++));
      sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
      spoil(options);
      try {
        sluice::Communicator comm(self.group, options);
        ADD_FAILURE() << "no error";
      } catch (const sluice::ArgumentError&) {
      } catch (const sluice::SystemError&) {  // an engine that is not there
      }
    }
    run_job(self, job, {});
  });
}

// One rank alone gives wrong options: the others are told at once and can try again.
PROMISE(C6, wrong_options_on_one_rank_end_the_creation_everywhere, {{2, 3}}) {
  const Job job(small_recipe(at.ranks, 8));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    if (self.rank == 1) options.topk = 1000;
    const double start = now_ms();
    try {
      sluice::Communicator comm(self.group, options);
      ADD_FAILURE() << "no error";
    } catch (const sluice::Error& error) {
      EXPECT_NE(std::string(error.what()).find("1000"), std::string::npos) << error.what();
    }
    EXPECT_LT(now_ms() - start, 5000);
    run_job(self, job, {});
  });
}

// The kernel would end that rank with a signal.
PROMISE(F5, a_rank_whose_files_may_not_be_as_large_as_the_window_says_so_to_all, {{2}, Where::processes}) {
  if (on_cuda()) GTEST_SKIP() << "its windows lie in device memory";
  const Job job(small_recipe(at.ranks, 1));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    const auto create = [&] { sluice::Communicator comm(self.group, options_for(job.problem, self.engine)); };
    if (self.rank == 1) {
      const FileLimit small(4096);
      expect_error<sluice::SystemError>(create, {"files of this process may have 4096", "ulimit -f"});
    } else {
      expect_error<sluice::PeerError>(create, {"rank 1 refused", "ulimit -f"});
    }
    run_job(self, job);
  });
}

}  // namespace
}  // namespace conformance
