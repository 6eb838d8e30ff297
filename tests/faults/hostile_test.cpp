// What a hostile reading of the promises found once.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sluice/sluice.h>

namespace sluice::faults {
namespace {

constexpr std::int64_t tokens = 8, hidden = 64;

CommunicatorOptions options_for(int ranks) {
  CommunicatorOptions options;
  options.engine = "cpu";
  options.max_tokens = tokens;
  options.experts = ranks;
  options.hidden = hidden;
  options.topk = 1;
  options.dtype = DataType::fp32;
  return options;
}

struct Batch {
  explicit Batch(int expert) : rows(tokens * hidden, 1.0f), ids(tokens, expert) {}
  DispatchArgs args() {
    DispatchArgs args;
    args.rows = {rows.data(), DataType::fp32, tokens, hidden};
    args.expert_ids = {ids.data(), DataType::int32, tokens, 1};
    return args;
  }
  std::vector<float> rows;
  std::vector<std::int32_t> ids;
};

TEST(C5, a_drop_without_a_capacity_does_not_depend_on_how_full_the_arena_is) {
  Communicator comm(Group::threads(1).front(), options_for(1));
  Batch batch(0);
  std::vector<DispatchResult> kept;
  bool full = false;
  for (int i = 0; i < 1000 && !full; ++i) {
    DispatchArgs args = batch.args();
    args.on_overflow = OnOverflow::drop;
    try {
      kept.push_back(comm.dispatch(args));
      EXPECT_EQ(kept.back().host.rows, tokens);
      kept.back().ready.wait();
      EXPECT_EQ(*kept.back().dropped.as<std::int64_t>(), 0);
    } catch (const CapacityError&) {
      full = true;
    }
  }
  EXPECT_TRUE(full);
}

TEST(C5, exact_without_a_capacity_takes_rows_as_long_as_they_fit) {
  CommunicatorOptions options = options_for(1);
  options.max_tokens = 5003;
  options.hidden = 4;  // 16 bytes, and 16 rows to a unit of the arena
  options.arena_bytes = 64 << 10;
  Communicator comm(Group::threads(1).front(), options);
  std::vector<float> rows(16 * 4, 1.0f);
  std::vector<std::int32_t> ids(16, 0);
  DispatchArgs args;
  args.rows = {rows.data(), DataType::fp32, 16, 4};
  args.expert_ids = {ids.data(), DataType::int32, 16, 1};
  std::vector<TensorView> held;
  std::string said;
  while (said.empty()) {
    try {
      comm.dispatch(args).ready.wait();
      held.push_back(comm.allocate(1, 256));
    } catch (const CapacityError& error) {
      said = error.what();
    }
  }
  EXPECT_NE(said.find("no free block of 256 bytes"), std::string::npos) << "the last unit was not used: " << said;
}

TEST(C6, values_that_no_argument_can_have_are_refused) {
  Communicator comm(Group::threads(1).front(), options_for(1));
  Batch batch(0);
  const auto refused = [&](auto&& spoil) {
    DispatchArgs args = batch.args();
    spoil(args);
    EXPECT_THROW(comm.dispatch(args), ArgumentError);
  };
  refused([](DispatchArgs& a) { a.layout = static_cast<Layout>(7); });
  refused([](DispatchArgs& a) { a.counts = static_cast<Counts>(7); });
  refused([](DispatchArgs& a) { a.quantise = static_cast<Quantise>(7); });
  refused([](DispatchArgs& a) { a.on_overflow = static_cast<OnOverflow>(7); });
  refused([](DispatchArgs& a) { a.expert_ids.dims = 100'000; });
  refused([](DispatchArgs& a) { a.rows.shape[1] = (std::int64_t{1} << 62) + 16; });
  refused([](DispatchArgs& a) { a.rows.strides[0] = std::int64_t{1} << 61; });
  refused([](DispatchArgs& a) { a.layout = Layout::padded, a.capacity = std::int64_t{1} << 40; });
  comm.dispatch(batch.args()).ready.wait();
  CommunicatorOptions options = options_for(1);
  options.layout = static_cast<Layout>(9);
  EXPECT_THROW(Communicator::size_of(options, 1), ArgumentError);
  options = options_for(1);
  options.hidden = (std::int64_t{1} << 62) + 16;
  EXPECT_THROW(Communicator::size_of(options, 1), ArgumentError);
}

TEST(F4, a_forked_child_may_exit_with_its_copy_of_a_communicator) {
  auto comm = std::make_unique<Communicator>(Group::threads(1).front(), options_for(1));
  const pid_t child = fork();
  if (child == 0) {
    comm.reset();
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  Batch batch(0);
  comm->dispatch(batch.args()).ready.wait();
}

// What `call` says in a forked child, which must end by itself.
std::string said_in_child(const std::function<void()>& call) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    alarm(5);
    std::string said = "nothing";
    try {
      call();
    } catch (const ArgumentError& error) {
      said = error.what();
    }
    _exit(write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  close(ends[1]);
  char text[512];
  const ssize_t length = read(ends[0], text, sizeof(text));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return std::string(text, static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
}

TEST(F4, a_forked_child_hears_that_its_communicator_and_pending_events_are_copies) {
  std::vector<Group> groups = Group::threads(2);
  std::atomic<bool> come{false};
  std::thread peer([&, group = std::move(groups[1])]() mutable {
    Communicator comm(group, options_for(2));
    while (!come) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Batch batch(1);
    DispatchArgs args = batch.args();
    args.counts = Counts::bounded;
    comm.dispatch(args).ready.wait();
  });
  Communicator comm(groups[0], options_for(2));
  Batch batch(0);
  DispatchArgs args = batch.args();
  args.counts = Counts::bounded;
  const DispatchResult sent = comm.dispatch(args);
  args.expert_ids = {};
  args.route = sent.route;
  const std::string communicator = "this is a forked copy of a communicator", event = "this is a forked copy of an event";
  EXPECT_NE(said_in_child([&] { comm.count(args); }).find(communicator), std::string::npos);
  EXPECT_NE(said_in_child([&] { comm.set_deadline_ms(5); }).find(communicator), std::string::npos);
  EXPECT_NE(said_in_child([&] { sent.ready.wait(); }).find(event), std::string::npos);
  EXPECT_NE(said_in_child([&] { sent.ready.query(); }).find(event), std::string::npos);
  EXPECT_NE(said_in_child([&] { sent.ready.stream_wait({}); }).find(event), std::string::npos);
  come = true;
  sent.ready.wait();
  EXPECT_EQ(said_in_child([&] { sent.ready.wait(); }), "nothing") << "it had happened before the fork";
  peer.join();
}

// The mask of every thread of this process but the caller's, as the kernel tells it.
std::vector<std::uint64_t> blocked_in_other_threads() {
  std::vector<std::uint64_t> masks;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:")) masks.push_back(std::stoull(line.substr(7), nullptr, 16));
    }
  }
  return masks;
}

TEST(C10, threads_of_the_library_take_no_signal_that_is_sent_to_the_process) {
  const std::size_t before = blocked_in_other_threads().size();
  CommunicatorOptions options = options_for(1);
  options.workers = 3;
  Communicator comm(Group::threads(1).front(), options);
  const auto holds = [](std::uint64_t mask, int signal) { return (mask >> (signal - 1) & 1) != 0; };
  std::size_t threads = 0, deaf = 0;
  // A thread that has not run yet holds all signals.
  for (int look = 0; look < 500 && (look == 0 || deaf < threads - before); ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::vector<std::uint64_t> masks = blocked_in_other_threads();
    threads = masks.size();
    deaf = 0;
    for (const std::uint64_t mask : masks) deaf += holds(mask, SIGALRM) && holds(mask, SIGTERM) && holds(mask, SIGPROF) && !holds(mask, SIGSEGV);
  }
  EXPECT_GE(threads, before + 4) << "two lanes and two workers";
  EXPECT_GE(deaf, threads - before);
}

}  // namespace
}  // namespace sluice::faults
