// Meetings that somebody disturbs or does not come to.
#include <sys/socket.h>

#include "boot/processes.h"
#include "boot/sockets.h"

namespace sluice::boot::testing {
namespace {

// Connects to the meeting of `key` as soon as there is one.
UniqueFd connect_soon(const std::string& name) {
  for (int n = 0; n < 5000; ++n) {
    int problem = 0;
    UniqueFd fd = connect_to(name, problem);
    if (fd) return fd;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw Broken{"no meeting to disturb"};
}

std::string name_of_meeting(const std::string& key) { return meeting_name(digest_of(key)); }

void send_hello(const UniqueFd& fd, const Hello& hello) {
  send_all(fd.get(), encode(hello), Deadline::in_ms(1000));
}

// Rank 0 and rank 1 of three wait while `disturb` does its worst; then rank 2 comes and all must meet.
void disturbed_meeting(const std::string& key, const std::function<void()>& disturb) {
  std::vector<pid_t> ranks;
  const auto body = [&](int rank) {
    auto group = meet_processes(place(rank, 3, key));
    group->barrier();
  };
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(fork_child([&] { body(rank); }));
  EXPECT_EQ(end_of(fork_child(disturb)), 0);
  ranks.push_back(fork_child([&] { body(2); }));
  for (const pid_t pid : ranks) EXPECT_EQ(end_of(pid), 0);
}

TEST(F6, stranger_of_another_user_cannot_join) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const std::string key = fresh_key("stranger");
  const std::string name = name_of_meeting(key);
  disturbed_meeting(key, [&] {
    require(::setresuid(54321, 54321, 54321) == 0, "setresuid");
    const UniqueFd fd = connect_soon(name);
    // A perfect hello, but for who sends it.
    send_hello(fd, {protocol_version, 2, 3, digest_of(key)});
    std::byte answer[frame_bytes];
    require(receive_all(fd.get(), answer, Deadline::in_ms(5000)) == Io::closed, "hung up without an answer");
  });
}

TEST(F6, a_meeting_place_held_by_another_user_is_not_used) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const std::string key = fresh_key("squatter");
  const std::string name = name_of_meeting(key);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t squatter = fork_child([&] {
    require(::setresuid(54321, 54321, 54321) == 0, "setresuid");
    int problem = 0;
    const UniqueFd fd = listen_at(name, problem);
    require(static_cast<bool>(fd) && ::write(ready[1], "x", 1) == 1, "listens");
    std::this_thread::sleep_for(std::chrono::seconds(30));
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  run_ranks(2, [&](int rank) {
    const std::string error = peer_error([&] { meet_processes(place(rank, 2, key, 300)); });
    require(contains(error, rank == 0 ? "holds the meeting place" : "held by user 54321"), error);
  });
  ::kill(squatter, SIGKILL);
  end_of(squatter);
}

TEST(F6, garbage_and_half_a_hello_do_not_break_a_meeting) {
  const std::string key = fresh_key("garbage");
  disturbed_meeting(key, [&] {
    for (int n = 0; n < 300; ++n) {
      const UniqueFd fd = connect_soon(name_of_meeting(key));
      const std::vector<std::byte> junk(static_cast<std::size_t>(n * 7 % 200), static_cast<std::byte>(n));
      send_some(fd.get(), junk);
    }
  });
}

TEST(F6, strangers_that_say_nothing_do_not_hold_up_a_meeting) {
  const std::string key = fresh_key("silent");
  const auto start = Clock::now();
  std::vector<UniqueFd> silent;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(fork_child([&, rank] { meet_processes(place(rank, 3, key))->barrier(); }));
  for (int n = 0; n < 400; ++n) silent.push_back(connect_soon(name_of_meeting(key)));
  ranks.push_back(fork_child([&] { meet_processes(place(2, 3, key))->barrier(); }));
  for (const pid_t pid : ranks) EXPECT_EQ(end_of(pid), 0);
  EXPECT_LT(ms_since(start), 4000);
}

TEST(F6, a_wrong_size_rank_version_or_job_is_turned_away_with_the_reason) {
  const std::string key = fresh_key("wrong");
  const KeyDigest digest = digest_of(key);
  const auto answer_to = [&](const Hello& hello) {
    const UniqueFd fd = connect_soon(name_of_meeting(key));
    send_hello(fd, hello);
    std::array<std::byte, frame_bytes> bytes{};
    require(receive_all(fd.get(), bytes, Deadline::in_ms(5000)) == Io::done, "an answer");
    const auto header = parse_frame(bytes);
    require(header && header->kind == FrameKind::turned_away, "turned away");
    std::vector<std::byte> text(header->length);
    require(receive_all(fd.get(), text, Deadline::in_ms(5000)) == Io::done, "a reason");
    return printable(text);
  };
  disturbed_meeting(key, [&] {
    // Rank 1 is admitted for sure once a second rank 1 is turned away.
    const Hello twice{protocol_version, 1, 3, digest};
    std::string text;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    text = answer_to(twice);
    require(contains(text, "rank 1, which is here already"), text);
    text = answer_to({protocol_version, 0, 3, digest});
    require(contains(text, "rank 0, which is here already"), text);
    text = answer_to({protocol_version, 2, 4, digest});
    require(contains(text, "the group has 4 ranks, rank 0 says 3"), text);
    text = answer_to({protocol_version, 3, 3, digest});
    require(contains(text, "rank 3 of 3"), text);
    text = answer_to({protocol_version + 1, 2, 3, digest});
    require(contains(text, "version 2"), text);
    text = answer_to({protocol_version, 2, 3, digest_of("another")});
    require(contains(text, "another job"), text);
  });
}

TEST(F6, a_second_process_of_a_rank_gets_an_error_and_the_first_meets) {
  const std::string key = fresh_key("second");
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(fork_child([&, rank] { meet_processes(place(rank, 3, key))->barrier(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(end_of(fork_child([&] {
              const std::string error = peer_error([&] { meet_processes(place(1, 3, key, 5000)); });
              require(contains(error, "test on rank 1 of 3: rank 0 does not admit this process"), error);
            })), 0);
  ranks.push_back(fork_child([&] { meet_processes(place(2, 3, key))->barrier(); }));
  for (const pid_t pid : ranks) EXPECT_EQ(end_of(pid), 0);
}

TEST(F6, a_rank_0_that_is_there_twice_is_named_by_both) {
  const std::string key = fresh_key("twice");
  const pid_t first = fork_child([&] {
    const std::string error = peer_error([&] { meet_processes(place(0, 2, key, 1000)); });
    require(contains(error, "rank 1 did not come to the meeting within 1000 ms (a process was turned away: it says that it is "
                            "rank 0, which is here already)"), error);
  });
  connect_soon(name_of_meeting(key));  // the first is there
  const pid_t second = fork_child([&] {
    const std::string error = peer_error([&] { meet_processes(place(0, 2, key, 2000)); });
    require(contains(error, "rank 1 did not come to the meeting within 2000 ms; in the first "), error);
    require(contains(error, " ms another process held the meeting place: rank 0 is there twice, or another job"), error);
  });
  for (const pid_t pid : {first, second}) EXPECT_EQ(end_of(pid), 0);
}

TEST(F1, a_rank_that_never_comes_to_the_meeting_is_named_on_every_rank_in_time) {
  const std::string key = fresh_key("never");
  // Of all ranks: rank 0 began earlier than another, and its verdict may come before that one's own time is up.
  const auto start = Clock::now();
  run_ranks(4, [&](int rank) {
    if (rank == 2) return;
    const std::string error = peer_error([&] { meet_processes(place(rank, 4, key, 700)); });
    require(contains(error, "rank 2 did not come to the meeting within 700 ms"), error);
    require(ms_since(start) >= 690 && ms_since(start) < 1700, "in time: " + std::to_string(ms_since(start)));
  });
}

TEST(F1, a_rank_0_that_never_comes_is_named_in_time) {
  const std::string key = fresh_key("never0");
  run_ranks(3, [&](int rank) {
    if (rank == 0) return;
    const auto start = Clock::now();
    const std::string error = peer_error([&] { meet_processes(place(rank, 3, key, 500)); });
    require(contains(error, "rank 0 did not come to the meeting within 500 ms"), error);
    require(ms_since(start) >= 490 && ms_since(start) < 1500, "in time");
  });
}

TEST(F2, a_rank_that_dies_during_the_meeting_ends_it_at_once) {
  const std::string key = fresh_key("dies");
  const auto start = Clock::now();
  std::vector<pid_t> ranks;
  for (const int rank : {0, 1})
    ranks.push_back(fork_child([&, rank] {
      const std::string error = peer_error([&] { meet_processes(place(rank, 4, key)); });
      require(contains(error, "rank 2 left during the meeting"), error);
    }));
  const pid_t victim = fork_child([&] { meet_processes(place(2, 4, key)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  ::kill(victim, SIGKILL);
  end_of(victim);
  for (const pid_t pid : ranks) EXPECT_EQ(end_of(pid), 0);
  EXPECT_LT(ms_since(start), 2000);
}

TEST(F4, a_meeting_can_be_held_again_at_once_after_everybody_was_killed) {
  const std::string key = fresh_key("again");
  for (int round = 0; round < 2; ++round) {
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.push_back(fork_child([&, rank] {
        auto group = meet_processes(place(rank, 2, key, 5000));
        group->barrier();
        if (round == 0) ::raise(SIGKILL);
      }));
    for (const pid_t pid : ranks) EXPECT_EQ(end_of(pid), round == 0 ? 128 + SIGKILL : 0);
  }
}

}  // namespace
}  // namespace sluice::boot::testing
