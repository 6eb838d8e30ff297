// What a hostile reading of the promises found once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
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

}  // namespace
}  // namespace sluice::faults
