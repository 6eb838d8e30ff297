// Groups of threads, and the public handle.
#include <atomic>

#include "boot/introduction.h"
#include "boot/processes.h"
#include "boot/thread_group.h"

namespace sluice::boot::testing {
namespace {

// Plays every rank of `groups` in a thread of its own, which drops its handle at the end.
template <class T>
void play(std::vector<T> groups, const std::function<void(T&, int rank)>& body) {
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < groups.size(); ++r)
    threads.emplace_back([&body, mine = std::move(groups[r]), r]() mutable {
      try {
        body(mine, static_cast<int>(r));
      } catch (const Broken& broken) {
        ADD_FAILURE() << "rank " << r << ": " << broken.text;
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  for (auto& t : threads) t.join();
}

class Threads : public ::testing::TestWithParam<int> {};

TEST_P(Threads, every_rank_gets_every_message_in_rank_order) {
  play<Group>(Group::threads(GetParam()), [&](Group& group, int rank) {
    require(group.rank() == rank && group.size() == GetParam() && group.state()->in_one_process(), "rank and size");
    for (int round = 0; round < 200; ++round) {
      const auto bytes = [&](int r) { return static_cast<std::size_t>((r * 31 + round * 7) % 90); };
      const auto all = group.all_gather(message_of(rank, bytes(rank)));
      for (int r = 0; r < group.size(); ++r) require(all[static_cast<std::size_t>(r)] == message_of(r, bytes(r)), "message");
      group.barrier();
    }
  });
}
INSTANTIATE_TEST_SUITE_P(F6, Threads, ::testing::Values(1, 2, 3, 16));

TEST(F6, sixty_four_threads_meet) {
  std::atomic<int> entered{0};
  play<Group>(Group::threads(64), [&](Group& group, int) {
    ++entered;
    group.barrier();
    require(entered == 64, "nobody passes before all are there");
  });
}

TEST(F1, a_thread_that_drops_its_handle_is_gone_for_waiters_and_watchers) {
  play<Group>(Group::threads(3), [](Group& group, int rank) {
    std::atomic<int> gone{-1};
    const auto token = group.state()->watch([&](int r) { gone = r; });
    group.barrier();
    if (rank == 1) return;
    const std::string error = peer_error([&] { group.barrier(); });
    require(contains(error, "rank 1 is gone"), error);
    for (int n = 0; n < 1000 && gone < 0; ++n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    require(gone >= 0, "told");
    const std::string again = peer_error([&] { group.all_gather({}); });
    require(contains(again, "rank 1 is gone"), again);
  });
}

TEST(F1, a_thread_that_does_not_come_is_named_in_time) {
  std::atomic<int> failed{0};
  play<std::shared_ptr<GroupState>>(make_thread_groups(3, 300), [&](std::shared_ptr<GroupState>& group, int rank) {
    if (rank == 2) {
      while (failed < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const auto start = Clock::now();
    const std::string error = peer_error([&] { group->barrier(); });
    ++failed;
    require(contains(error, "rank 2 did not come within 300 ms"), error);
    require(ms_since(start) >= 299 && ms_since(start) < 1300, "in time");
  });
}

TEST(F3, threads_that_make_different_calls_all_get_an_error_and_go_on) {
  play<Group>(Group::threads(3), [](Group& group, int rank) {
    const std::string error = peer_error([&] { rank == 1 ? group.barrier() : void(group.all_gather({})); });
    require(contains(error, "rank 1 calls barrier while rank 0 calls all_gather"), error);
    group.barrier();
  });
}

TEST(U2, threads_share_objects_and_one_that_is_gone_is_an_error_of_its_rank) {
  play<std::shared_ptr<GroupState>>(make_thread_groups(3, 10000), [](std::shared_ptr<GroupState>& group, int rank) {
    std::weak_ptr<void> seen;
    {
      auto mine = std::make_shared<int>(rank);
      const auto all = group->exchange_objects(mine);
      mine.reset();  // the others hold it
      for (int r = 0; r < 3; ++r) require(*std::static_pointer_cast<int>(all[static_cast<std::size_t>(r)]) == r, "theirs");
      seen = all[1];
      group->barrier();
    }
    group->barrier();
    require(seen.expired(), "the group keeps nothing alive");
    const auto mine = rank == 2 ? nullptr : std::make_shared<int>(rank);
    const std::string error = peer_error([&] { group->exchange_objects(mine); });
    require(contains(error, "rank 2 has dropped its object"), error);
    group->barrier();
  });
}

TEST(Group, too_long_a_message_of_a_thread_is_refused_and_the_group_stays_usable) {
  play<Group>(Group::threads(2), [](Group& group, int rank) {
    const std::vector<std::byte> message(rank == 0 ? (std::size_t{16} << 20) + 1 : 1);
    if (rank == 0) {
      EXPECT_THROW(group.all_gather(message), ArgumentError);
    } else {
      const std::string error = peer_error([&] { group.all_gather(message); });
      require(contains(error, "rank 0 refused: a message of 16777217 bytes"), error);
    }
    group.barrier();
  });
}

TEST(Group, an_empty_handle_and_a_wrong_size_are_argument_errors) {
  const Group empty;
  EXPECT_FALSE(empty.valid());
  EXPECT_THROW(empty.rank(), ArgumentError);
  EXPECT_THROW(empty.size(), ArgumentError);
  EXPECT_THROW(empty.barrier(), ArgumentError);
  EXPECT_THROW(empty.all_gather({}), ArgumentError);
  EXPECT_THROW(Group::threads(0), ArgumentError);
  EXPECT_THROW(Group::threads(129), ArgumentError);
  EXPECT_EQ(Group::threads(128).size(), 128u);
}

// A group of threads is the caller's own all-gather here.
TEST(Group, from_all_gather_meets_and_never_calls_again) {
  play<Group>(Group::threads(5), [](Group& own, int rank) {
    int calls = 0;
    const auto group = Group::from_all_gather(rank, 5, [&](std::span<const std::byte> message) {
      ++calls;
      return own.all_gather(message);
    });
    const int before = calls;
    require(!group.state()->in_one_process(), "sockets");
    const auto all = group.all_gather(message_of(rank, 10));
    for (int r = 0; r < 5; ++r) require(all[static_cast<std::size_t>(r)] == message_of(r, 10), "message");
    group.barrier();
    require(calls == before && calls > 0, "not called again");
  });
}

TEST(F3, from_all_gather_with_other_sizes_or_wrong_arguments_is_an_error_on_every_rank) {
  play<Group>(Group::threads(3), [](Group& own, int rank) {
    const auto gather = [&](std::span<const std::byte> message) { return own.all_gather(message); };
    const std::string twice = peer_error([&] { Group::from_all_gather(rank == 2 ? 1 : rank, 3, gather); });
    require(contains(twice, "the message at place 2 is of rank 1 of 3"), twice);
    if (rank == 1) {
      EXPECT_THROW(Group::from_all_gather(3, 3, gather), ArgumentError);
    } else {
      const std::string error = peer_error([&] { Group::from_all_gather(rank, 3, gather); });
      require(contains(error, "rank 1 refused"), error);
    }
  });
  const auto none = [](std::span<const std::byte>) { return std::vector<std::vector<std::byte>>(); };
  EXPECT_THROW(Group::from_all_gather(0, 2, none), ArgumentError);
  EXPECT_THROW(Group::from_all_gather(0, 1, nullptr), ArgumentError);
}

TEST(Group, several_nodes_are_one_sentence_on_every_rank) {
  play<Group>(Group::threads(2), [](Group& own, int rank) {
    const auto gather = [&](std::span<const std::byte> message) {
      auto all = own.all_gather(message);
      all[1][introduction_bytes - node_bytes] ^= std::byte{1};  // rank 1 has another boot id
      return all;
    };
    try {
      Group::from_all_gather(rank, 2, gather);
      require(false, "an error must come");
    } catch (const SystemError& error) {
      require(contains(error.what(), "more than one node is not supported yet"), error.what());
    }
  });
}

TEST(F4, a_forked_child_hears_that_its_rank_is_a_copy_and_can_drop_it) {
  std::vector<Group> groups = Group::threads(2);
  std::atomic<int> gone{0};
  const auto token = groups[1].state()->watch([&](int) { ++gone; });
  const pid_t child = fork_child([&] {
    try {
      groups[0].barrier();
      require(false, "a copy must not be used");
    } catch (const ArgumentError& error) {
      require(contains(error.what(), "forked copy"), error.what());
    }
    groups.clear();
    require(gone == 0, "nobody is told in the child");
  });
  EXPECT_EQ(end_of(child, 5000), 0);
  play<Group>(std::move(groups), [](Group& group, int) { group.barrier(); });
}

}  // namespace
}  // namespace sluice::boot::testing
