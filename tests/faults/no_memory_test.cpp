// A call for which the heap has nothing left, at each of its allocations in turn (promises C6 and F1).
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <sluice/sluice.h>

#include "failing_allocation.h"
#include "sanitizers.h"

#if SLUICE_THREAD_SANITIZER

TEST(C6, a_dispatch_that_finds_no_memory_is_refused_at_each_of_its_allocations) {
  GTEST_SKIP() << "needs a build without TSan, which has its own operator new";
}

#else

namespace {

void* take(std::size_t size) {
  if (allocation_fails()) throw std::bad_alloc();
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return take(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace sluice::faults {
namespace {

constexpr std::int64_t tokens = 8, hidden = 64;
constexpr int deadline_ms = 60'000;

// One rank of two, in a thread of its own; each call of rank 1 is met by one of rank 0.
class Rank {
 public:
  explicit Rank(Group group) : comm_(group, options()), rank_(group.rank()), rows_(tokens * hidden, 1.0f), ids_(2 * tokens) {
    for (std::size_t i = 0; i < ids_.size(); ++i) ids_[i] = static_cast<std::int32_t>(i % 2);
  }

  DispatchArgs dispatch_args(Counts counts) const {
    DispatchArgs args;
    args.rows = {rows_.data(), DataType::fp32, tokens, hidden};
    args.expert_ids = {ids_.data(), DataType::int32, tokens, 2};
    args.layout = Layout::grouped;
    args.quantise = Quantise::none;
    args.counts = counts;
    return args;
  }

  DispatchResult dispatch(Counts counts, int fails_at = -1) {
    const DispatchArgs args = dispatch_args(counts);
    allocations_left = fails_at;
    const Disarm disarm;
    return comm_.dispatch(args);
  }

  CombineResult combine(const DispatchResult& sent, int fails_at = -1) {
    CombineArgs args;
    args.rows = sent.rows;
    args.route = sent.route;
    allocations_left = fails_at;
    const Disarm disarm;
    return comm_.combine(args);
  }

  RoutingCounts count(int fails_at) {
    const DispatchArgs args = dispatch_args(Counts::exact);
    allocations_left = fails_at;
    const Disarm disarm;
    return comm_.count(args);
  }

  int rank() const { return rank_; }

 private:
  struct Disarm {
    ~Disarm() { allocations_left = -1; }
  };

  static CommunicatorOptions options() {
    CommunicatorOptions options;
    options.engine = "cpu";
    options.max_tokens = tokens;
    options.experts = 2;
    options.hidden = hidden;
    options.topk = 2;
    options.dtype = DataType::fp32;
    options.layout = Layout::grouped;
    options.deadline_ms = deadline_ms;
    return options;
  }

  Communicator comm_;
  int rank_;
  std::vector<float> rows_;
  std::vector<std::int32_t> ids_;
};

// "" or the class and the sentence.
std::string outcome(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return std::string(error.kind()) + ": " + error.what();
  } catch (const std::exception& error) {
    return std::string("not an error of the library: ") + error.what();
  }
}

// Runs `call(rank, n)` on both ranks for n = 0, 1, ... until the n-th allocation of rank 1 is behind the call; returns n.
// Every time before, rank 1 must have said that it has no memory, and rank 0 must have heard it.
int fail_each_allocation(const std::string& operation, const std::function<void(Rank&, int)>& call) {
  std::vector<Group> groups = Group::threads(2);
  std::vector<std::vector<std::string>> said(2);
  std::vector<std::thread> threads;
  constexpr int most = 400;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r, group = std::move(groups[r])]() mutable {
      Rank rank(std::move(group));
      do {
        const int n = static_cast<int>(said[r].size());
        said[r].push_back(outcome([&] { call(rank, r == 1 ? n : -1); }));
      } while (!said[r].back().empty() && said[r].size() < most);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(said[0].size(), said[1].size());
  const std::string no_memory = operation + " on rank 1 of 2: this process has no memory left";
  for (std::size_t n = 0; n + 1 < std::min(said[0].size(), said[1].size()); ++n) {
    EXPECT_EQ(said[1][n].find("SystemError: " + no_memory), 0u) << "allocation " << n << ": " << said[1][n];
    EXPECT_NE(said[0][n].find("rank 1 refused: " + no_memory), std::string::npos) << "allocation " << n << ": " << said[0][n];
  }
  EXPECT_EQ(said[0].back(), "");
  EXPECT_EQ(said[1].back(), "");
  return static_cast<int>(said[1].size()) - 1;
}

TEST(C6, a_dispatch_that_finds_no_memory_is_refused_at_each_of_its_allocations) {
  for (const Counts counts : {Counts::bounded, Counts::exact}) {
    EXPECT_GT(fail_each_allocation("dispatch", [&](Rank& rank, int n) { rank.dispatch(counts, n).ready.wait(); }), 10);
  }
}

TEST(C6, a_combine_that_finds_no_memory_is_refused_at_each_of_its_allocations) {
  EXPECT_GT(fail_each_allocation("combine", [](Rank& rank, int n) {
    const DispatchResult sent = rank.dispatch(Counts::bounded);
    rank.combine(sent, n).ready.wait();
  }), 10);
}

TEST(C6, a_count_that_finds_no_memory_says_so) {
  Rank rank(Group::threads(1).front());
  int n = 0;
  for (std::string said; !(said = outcome([&] { rank.count(n); })).empty() && n < 100; ++n) {
    EXPECT_EQ(said.find("SystemError: count on rank 0 of 1: this process has no memory left"), 0u) << said;
  }
  EXPECT_GT(n, 2);
}

}  // namespace
}  // namespace sluice::faults

#endif
