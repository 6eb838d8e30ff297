// Peers that are lost: who notices, and when.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "boot/processes.h"

namespace sluice::boot::testing {
namespace {

// Collects what a watch reports.
class Gone {
 public:
  std::function<void(int)> callback() {
    return [this](int rank) {
      const std::lock_guard lock(mutex_);
      ranks_.push_back(rank);
      changed_.notify_all();
    };
  }
  bool wait(std::size_t n, int ms) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return ranks_.size() >= n; });
  }
  std::vector<int> ranks() {
    const std::lock_guard lock(mutex_);
    return ranks_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> ranks_;
};

TEST(F1, a_killed_process_is_noticed_within_200_ms_by_every_peer_and_once) {
  const std::string key = fresh_key("killed");
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.push_back(fork_child([&, rank] {
      auto group = meet_processes(place(rank, 4, key));
      Gone gone;
      const auto token = group->watch(gone.callback());
      group->barrier();
      if (rank == 2) ::raise(SIGKILL);
      require(gone.wait(1, 200), "noticed within 200 ms");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      require(gone.ranks() == std::vector<int>{2}, "rank 2, once");
      const auto start = Clock::now();
      const std::string error = peer_error([&] { group->barrier(); });
      require(contains(error, "rank 2 is gone"), error);
      require(ms_since(start) < 200, "at once");
      // Nobody leaves before all have seen this.
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }));
  EXPECT_EQ(end_of(ranks[2]), 128 + SIGKILL);
  for (const std::size_t r : {0u, 1u, 3u}) EXPECT_EQ(end_of(ranks[r]), 0);
}

TEST(F1, a_killed_process_ends_a_barrier_that_waits_for_it) {
  const std::string key = fresh_key("barrier");
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 5; ++rank)
    ranks.push_back(fork_child([&, rank] {
      auto group = meet_processes(place(rank, 5, key));
      group->barrier();
      if (rank == 4) {
        std::this_thread::sleep_for(std::chrono::milliseconds(150));
        ::raise(SIGKILL);
      }
      const auto start = Clock::now();
      const std::string error = peer_error([&] { group->barrier(); });
      require(contains(error, "rank 4 is gone") || contains(error, "gave up: rank 4 is gone"), error);
      require(ms_since(start) < 1000, "at once");
      const std::string again = peer_error([&] { group->barrier(); });
      require(contains(again, "rank 4 is gone"), again);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }));
  EXPECT_EQ(end_of(ranks[4]), 128 + SIGKILL);
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(end_of(ranks[r]), 0);
}

TEST(F1, a_rank_that_does_not_come_to_a_barrier_is_named_on_every_rank_in_time) {
  const std::string key = fresh_key("late");
  run_ranks(4, [&](int rank) {
    auto group = meet_processes(place(rank, 4, key, 600));
    group->barrier();
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      const std::string error = peer_error([&] { for (int n = 0; n < 2; ++n) group->barrier(); });
      require(contains(error, "gave up") || contains(error, "gone"), error);
      return;
    }
    const auto start = Clock::now();
    const std::string error = peer_error([&] { group->barrier(); });
    require(contains(error, "rank 1 did not come within 600 ms"), error);
    require(ms_since(start) < 1600, "in time");
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  });
}

TEST(F2, a_frozen_rank_does_not_block_large_messages_for_ever) {
  const std::string key = fresh_key("frozen");
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.push_back(fork_child([&, rank] {
      auto group = meet_processes(place(rank, 3, key, 800));
      group->barrier();
      if (rank == 2) ::raise(SIGSTOP);
      const std::vector<std::byte> message(std::size_t{8} << 20);
      const std::string error = peer_error([&] { group->all_gather(message); });
      require(contains(error, "rank 2 did not come within 800 ms"), error);
    }));
  for (const std::size_t r : {0u, 1u}) EXPECT_EQ(end_of(ranks[r]), 0);
  ::kill(ranks[2], SIGKILL);
  end_of(ranks[2]);
}

TEST(Watch, a_peer_that_leaves_in_order_is_told_also_to_a_later_watch_and_traffic_is_not) {
  const std::string key = fresh_key("order");
  run_ranks(3, [&](int rank) {
    auto group = meet_processes(place(rank, 3, key));
    Gone gone;
    auto token = group->watch(gone.callback());
    for (int n = 0; n < 50; ++n) group->all_gather(std::vector<std::byte>(static_cast<std::size_t>(n * 1000)));
    require(rank == 2 || gone.ranks().empty() || gone.ranks() == std::vector<int>{2}, "traffic is no news");
    if (rank == 2) return;
    require(gone.wait(1, 2000) && gone.ranks() == std::vector<int>{2}, "rank 2 has left");
    token.reset();
    Gone later;
    const auto second = group->watch(later.callback());
    require(later.ranks() == std::vector<int>{2}, "told in the call");
    peer_error([&] { group->barrier(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  });
}

TEST(Watch, the_last_handle_may_be_dropped_inside_the_callback) {
  const std::string key = fresh_key("inside");
  run_ranks(2, [&](int rank) {
    auto group = meet_processes(place(rank, 2, key));
    std::atomic<bool> left{false}, dropped{false};
    std::shared_ptr<void> token = group->watch([&](int) {
      while (!left) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      token.reset();
      group.reset();
      dropped = true;
    });
    group->barrier();  // rank 1 leaves only when rank 0 has its token
    left = true;       // and the group goes only when this thread is through with it
    if (rank == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (int n = 0; n < 2000 && !dropped; ++n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    require(dropped, "dropped");
  });
}

// From now on this process can open nothing.
void use_up_descriptors() {
  const rlimit few{64, 64};
  require(::setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
  while (::dup(0) >= 0) {
  }
}

void expect_death_seen_beside_a_child(const char* test, bool full) {
  const std::string key = fresh_key(test);
  int orphan[2];
  ASSERT_EQ(::pipe(orphan), 0);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(fork_child([&, rank] {
      auto group = meet_processes(place(rank, 2, key));
      Gone gone;
      const auto token = group->watch(gone.callback());
      group->barrier();
      if (rank == 1) {
        if (full) use_up_descriptors();
        // Like a data loader: lives on after its parent was killed.
        const pid_t child = ::fork();
        if (child == 0) {
          std::this_thread::sleep_for(std::chrono::seconds(5));
          ::_exit(0);
        }
        require(::write(orphan[1], &child, sizeof child) == sizeof child, "write");
        ::raise(SIGKILL);
      }
      require(gone.wait(1, 1000), "noticed although a child of the dead rank lives");
    }));
  pid_t child = 0;
  ASSERT_EQ(::read(orphan[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  EXPECT_EQ(end_of(ranks[1]), 128 + SIGKILL);
  EXPECT_EQ(end_of(ranks[0]), 0);
  ::kill(child, SIGKILL);
  ::close(orphan[0]);
  ::close(orphan[1]);
}

TEST(F2, a_forked_child_does_not_hide_the_death_of_its_parent) { expect_death_seen_beside_a_child("forked", false); }
TEST(F2, a_child_forked_where_no_file_can_be_opened_does_not_hide_it_either) {
  if (takes_descriptors) GTEST_SKIP() << "needs a build without UBSan, which takes descriptors itself";
  expect_death_seen_beside_a_child("full", true);
}

TEST(F4, a_forked_child_can_drop_its_copy_and_the_parent_goes_on) {
  const std::string key = fresh_key("copy");
  run_ranks(2, [&](int rank) {
    auto group = meet_processes(place(rank, 2, key));
    auto token = group->watch([](int) {});
    const pid_t child = fork_child([&] {
      try {
        group->barrier();
        require(false, "a copy must not be used");
      } catch (const ArgumentError& error) {
        require(contains(error.what(), "forked copy"), error.what());
      }
      token.reset();
      group.reset();
    });
    require(end_of(child, 5000) == 0, "the child ends");
    group->barrier();
  });
}

}  // namespace
}  // namespace sluice::boot::testing
