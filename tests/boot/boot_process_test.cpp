// Groups of processes: collectives, sizes, descriptors, what is left behind.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "boot/processes.h"

namespace sluice::boot::testing {
namespace {

void check_gather(GroupState& group, const std::function<std::size_t(int)>& bytes_of_rank) {
  const auto all = group.all_gather(message_of(group.rank(), bytes_of_rank(group.rank())));
  require(static_cast<int>(all.size()) == group.size(), "one message of each rank");
  for (int r = 0; r < group.size(); ++r)
    require(all[static_cast<std::size_t>(r)] == message_of(r, bytes_of_rank(r)), "the message of rank " + std::to_string(r));
}

class Sizes : public ::testing::TestWithParam<int> {};

TEST_P(Sizes, every_rank_gets_every_message_in_rank_order) {
  const int size = GetParam();
  const std::string key = fresh_key("sizes");
  run_ranks(size, [&](int rank) {
    auto group = meet_processes(place(rank, size, key));
    require(group->rank() == rank && group->size() == size && !group->in_one_process(), "rank and size");
    require(group->nodes() == std::vector<int>(static_cast<std::size_t>(size), 0), "one node");
    for (int round = 0; round < 3; ++round) {
      check_gather(*group, [&](int r) { return static_cast<std::size_t>((r * 131 + round) % 700); });
      group->barrier();
    }
  });
}
INSTANTIATE_TEST_SUITE_P(F6, Sizes, ::testing::Values(1, 2, 3, 5, 16, 64));

TEST(Group, messages_of_8_megabytes_and_of_none_pass_at_the_same_time) {
  const std::string key = fresh_key("large");
  run_ranks(4, [&](int rank) {
    auto group = meet_processes(place(rank, 4, key));
    check_gather(*group, [](int r) { return r == 2 ? std::size_t{0} : std::size_t{8} << 20; });
    check_gather(*group, [](int r) { return r == 1 ? std::size_t{16} << 20 : std::size_t{1}; });
  });
}

TEST(Group, a_message_above_the_limit_is_refused_on_one_rank_and_the_group_stays_usable) {
  const std::string key = fresh_key("limit");
  run_ranks(3, [&](int rank) {
    auto group = meet_processes(place(rank, 3, key));
    const std::vector<std::byte> message(rank == 1 ? (std::size_t{16} << 20) + 1 : 8);
    try {
      group->all_gather(message);
      require(false, "an error must come");
    } catch (const ArgumentError& error) {
      require(rank == 1 && contains(error.what(), "16777217 bytes"), error.what());
    } catch (const PeerError& error) {
      require(rank != 1 && contains(error.what(), "rank 1 refused"), error.what());
    }
    check_gather(*group, [](int) { return std::size_t{3}; });
  });
}

TEST(F3, different_calls_are_an_error_on_every_rank_and_the_group_stays_usable) {
  const std::string key = fresh_key("different");
  run_ranks(3, [&](int rank) {
    auto group = meet_processes(place(rank, 3, key));
    const std::string error = peer_error([&] { rank == 2 ? group->barrier() : void(group->all_gather({})); });
    require(contains(error, "rank 2 calls barrier while rank 0 calls all_gather"), error);
    check_gather(*group, [](int) { return std::size_t{3}; });
  });
}

// A peer that leaves because it lost another may be seen first: the one that was lost is named too.
TEST(F2, all_peers_that_are_gone_are_named) {
  const std::string key = fresh_key("gone");
  run_ranks(4, [&](int rank) {
    auto group = meet_processes(place(rank, 4, key));
    group->barrier();
    if (rank == 1 || rank == 3) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (rank == 2) return;  // last
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const std::string error = peer_error([&] { group->barrier(); });
    require(contains(error, "rank 1 is gone, rank 2 is gone, rank 3 is gone"), error);
  });
}

TEST(Group, descriptors_arrive_and_show_the_same_memory) {
  const std::string key = fresh_key("descriptors");
  run_ranks(16, [&](int rank) {
    auto group = meet_processes(place(rank, 16, key));
    const UniqueFd mine(::memfd_create("window", MFD_CLOEXEC));
    const std::string text = "of rank " + std::to_string(rank);
    require(::pwrite(mine.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()), "write");
    const auto all = group->exchange_descriptors(mine.get());
    for (int r = 0; r < 16; ++r) {
      char seen[32] = {};
      const int fd = all[static_cast<std::size_t>(r)].get();
      require(::pread(fd, seen, sizeof seen - 1, 0) > 0 && "of rank " + std::to_string(r) == seen, "the memory of the rank");
      require((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0, "closed on exec");
    }
    const std::string before = rank == 3 ? "refused" : "peer";
    try {
      group->exchange_descriptors(rank == 3 ? -1 : mine.get());
      require(false, "an error must come");
    } catch (const ArgumentError&) {
      require(rank == 3, before);
    } catch (const PeerError& error) {
      require(rank != 3 && contains(error.what(), "rank 3 refused"), error.what());
    }
    group->barrier();
  });
}

TEST(Group, a_full_table_of_descriptors_is_an_error_of_the_system_and_told_to_the_peers) {
  if (takes_descriptors) GTEST_SKIP() << "needs a build without UBSan, which takes descriptors itself";
  const std::string key = fresh_key("full");
  run_ranks(3, [&](int rank) {
    auto group = meet_processes(place(rank, 3, key));
    const UniqueFd mine(::memfd_create("window", MFD_CLOEXEC));
    const rlimit few{64, 64};
    require(::setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
    std::vector<UniqueFd> all;
    for (int fd = 0; rank == 1 && (fd = ::dup(mine.get())) >= 0;) all.emplace_back(fd);
    try {
      group->exchange_descriptors(mine.get());
      require(false, "an error must come");
    } catch (const SystemError& error) {
      require(rank == 1 && contains(error.what(), "Too many open files") && contains(error.what(), "ulimit -n"), error.what());
    } catch (const PeerError& error) {
      require(rank != 1 && contains(error.what(), "rank 1 refused"), error.what());
    }
    all.clear();
    require(group->exchange_descriptors(mine.get()).size() == 3, "all descriptors");
  });
}

TEST(F4, no_descriptor_is_left_open) {
  const std::string key = fresh_key("left");
  run_ranks(4, [&](int rank) {
    const int before = open_files();
    std::vector<bool> inherited;
    for (int fd = 0; fd < 256; ++fd) inherited.push_back(::fcntl(fd, F_GETFD) >= 0);
    for (int n = 0; n < 5; ++n) {
      auto group = meet_processes(place(rank, 4, key + std::to_string(n)));
      const auto token = group->watch([](int) {});
      const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      const auto all = group->exchange_descriptors(file.get());
      group->barrier();
      for (int fd = 0; fd < 256; ++fd) {
        const int flags = ::fcntl(fd, F_GETFD);
        require(flags < 0 || inherited[static_cast<std::size_t>(fd)] || (flags & FD_CLOEXEC) != 0, "closed on exec");
      }
    }
    require(open_files() == before, "as many open files as before");
  });
}

TEST(F4, few_open_files_are_enough_for_many_ranks) {
  const std::string key = fresh_key("files");
  run_ranks(24, [&](int rank) {
    rlimit few{64, 64};
    require(::setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
    // Descriptors under way are counted against the limit only for users without privileges.
    if (::geteuid() == 0) require(::setresuid(54321, 54321, 54321) == 0, "setresuid");
    auto group = meet_processes(place(rank, 24, key));
    const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (int n = 0; n < 3; ++n) require(group->exchange_descriptors(file.get()).size() == 24, "all descriptors");
  });
}

}  // namespace
}  // namespace sluice::boot::testing
