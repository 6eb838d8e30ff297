// What errors say beside the call and the rank: where a number comes from, and which cure fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sluice/sluice.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int tokens = 4, hidden = 64, topk = 2, experts = 4;

CommunicatorOptions small() {
  return {.max_tokens = 8, .experts = experts, .hidden = hidden, .topk = topk, .dtype = DataType::fp32};
}

struct Caught {
  std::string kind, what;
  int rank = -2;
};

template <class Call>
Caught caught(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.kind(), error.what(), error.rank()};
  }
  return {"none", "", -2};
}

// One rank with tokens, and the arguments of a legal dispatch.
struct Alone {
  std::vector<float> rows = std::vector<float>(tokens * hidden, 1.0f), weights = std::vector<float>(tokens * topk, 0.5f);
  std::vector<int> ids = {0, 1, 1, 2, 2, 3, 3, 0};
  Communicator comm;
  explicit Alone(const CommunicatorOptions& options = small()) : comm(Group::threads(1)[0], options) {}

  DispatchArgs args(Layout layout) {
    return {.rows = {rows.data(), DataType::fp32, tokens, hidden}, .expert_ids = {ids.data(), DataType::int32, tokens, topk},
            .weights = {weights.data(), DataType::fp32, tokens, topk}, .layout = layout};
  }
};

TEST(errors, a_shape_that_does_not_fit_says_where_the_other_comes_from) {
  Alone one;
  DispatchArgs args = one.args(Layout::grouped);
  args.rows = {one.rows.data(), DataType::fp32, 3, hidden};
  EXPECT_THAT(caught([&] { one.comm.dispatch(args); }).what,
              HasSubstr("rows has shape [3, 64], but [4, any] is needed: as many rows as expert_ids has"));
  args = one.args(Layout::grouped);
  args.weights = {one.weights.data(), DataType::fp32, 3, topk};
  EXPECT_THAT(caught([&] { one.comm.dispatch(args); }).what,
              HasSubstr("weights has shape [3, 2], but [4, 2] is needed: as expert_ids has"));

  const auto sent = one.comm.dispatch(one.args(Layout::grouped));
  const ConstTensorView own(one.weights.data(), DataType::fp32, tokens, topk);
  EXPECT_THAT(caught([&] { one.comm.combine({.rows = sent.rows, .route = sent.route, .weights = own}); }).what,
              HasSubstr("weights has shape [4, 2], but [8] is needed: one for each row, as DispatchResult has them"));
  const auto packed = one.comm.dispatch(one.args(Layout::packed));
  EXPECT_THAT(caught([&] { one.comm.combine({.rows = packed.rows, .route = packed.route, .weights = packed.weights}); }).what,
              HasSubstr("weights has shape [4, 2], but [4] is needed: one for each row; the [N, K] of dispatch belong"));
}

TEST(errors, too_little_room_says_the_cure_of_where_the_capacity_came_from) {
  Alone one;
  DispatchArgs args = one.args(Layout::grouped);
  args.capacity = 3;
  std::string what = caught([&] { one.comm.dispatch(args); }).what;
  EXPECT_THAT(what, HasSubstr("rank 0 needs 8 rows, but its capacity is 3; no row was moved: raise the capacity, or leave out"));
  EXPECT_THAT(what, Not(HasSubstr("arena")));
  std::vector<float> room(3 * hidden);
  args = one.args(Layout::grouped);
  args.output = {room.data(), DataType::fp32, 3, hidden};
  what = caught([&] { one.comm.dispatch(args); }).what;
  EXPECT_THAT(what, HasSubstr("no row was moved: give a larger output, or leave out"));
  EXPECT_THAT(what, Not(HasSubstr("arena")));

  Alone narrow(CommunicatorOptions{.max_tokens = 8, .experts = experts, .hidden = hidden, .topk = topk, .dtype = DataType::fp32,
                                   .arena_bytes = 8192});
  std::vector<DispatchResult> kept;
  what = caught([&] {
           for (;;) kept.push_back(narrow.comm.dispatch(narrow.args(Layout::grouped)));
         }).what;
  EXPECT_THAT(what, Not(HasSubstr("raise the capacity")));
  EXPECT_THAT(what, HasSubstr("or raise arena_bytes"));
}

TEST(errors, too_little_room_at_a_peer_says_all_that_may_help) {
  auto groups = Group::threads(2);
  std::string what[2];
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank, group = std::move(groups[static_cast<std::size_t>(rank)])] {
        Communicator comm(group, small());
        std::vector<float> rows(tokens * hidden);
        std::vector<int> ids(tokens, 0);
        what[rank] = caught([&] {
                       comm.dispatch({.rows = {rows.data(), DataType::fp32, tokens, hidden},
                                      .expert_ids = {ids.data(), DataType::int32, tokens, 1},
                                      .capacity = rank == 0 ? 1 : 0});
                     }).what;
      });
    }
  }
  EXPECT_THAT(what[0], Not(HasSubstr("arena")));
  EXPECT_THAT(what[1], HasSubstr("rank 0 needs 8 rows, but its capacity is 1; no row was moved: raise the capacity, or leave out what "
                                 "is too much by on_overflow = OnOverflow::drop; without a capacity the rows take"));
}

TEST(errors, of_the_engine_and_the_environment_name_the_call_and_the_rank) {
  auto group = Group::threads(1)[0];
  CommunicatorOptions options = small();
  options.engine = "gpu";
  Caught error = caught([&] { Communicator(group, options); });
  EXPECT_EQ(error.kind, "ArgumentError");
  EXPECT_EQ(error.rank, 0);
  EXPECT_THAT(error.what, StartsWith("communicator on rank 0: engine \"gpu\" is unknown"));
  setenv("SLUICE_CHECK", "yes", 1);
  error = caught([&] { Communicator(group, small()); });
  unsetenv("SLUICE_CHECK");
  EXPECT_EQ(error.rank, 0);
  EXPECT_THAT(error.what, StartsWith("communicator on rank 0: SLUICE_CHECK = \"yes\" is neither"));
  options = small();
  options.hidden = 3;  // its sentence has call and rank already
  error = caught([&] { Communicator(group, options); });
  EXPECT_THAT(error.what, HasSubstr("rows of hidden = 3"));
  EXPECT_EQ(error.what.find("communicator on rank 0: "), error.what.rfind("communicator on rank 0: ")) << error.what;
}

TEST(errors, a_peer_that_goes_before_the_communicator_is_made_is_named_with_what_was_made) {
  auto groups = Group::threads(2);
  groups[1] = Group();
  const Caught error = caught([&] { Communicator(groups[0], small()); });
  EXPECT_EQ(error.kind, "PeerError");
  EXPECT_EQ(error.rank, 0);
  EXPECT_THAT(error.what, StartsWith("communicator on rank 0: all_gather on rank 0 of 2: rank 1 is gone"));
}

TEST(errors, ids_of_this_rank_that_are_refused_are_logged) {
  std::vector<std::string> said;
  CommunicatorOptions options = small();
  options.log_level = LogLevel::info;
  options.log = [&](LogLevel level, const std::string& text) {
    EXPECT_EQ(level, LogLevel::info);
    said.push_back(text);
  };
  Alone one(options);
  one.ids[3] = 77;
  const Caught error = caught([&] { one.comm.dispatch(one.args(Layout::packed)); });
  EXPECT_EQ(error.kind, "ArgumentError");
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[1], error.what);
}

}  // namespace
}  // namespace sluice
