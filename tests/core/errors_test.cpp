// What errors say beside the call and the rank: where a number comes from, and which cure fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sluice/sluice.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using ::testing::ContainsRegex;
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

TEST(errors, rows_longer_than_the_communicator_was_made_for_get_a_cure_without_capacity) {
  CommunicatorOptions options = small();
  options.hidden = 16;
  options.max_tokens = 64;
  Alone one(options);
  constexpr int n = 64, long_hidden = 16384;
  std::vector<float> rows(n * long_hidden);
  std::vector<int> ids(n * topk);
  for (int i = 0; i < n * topk; ++i) ids[static_cast<std::size_t>(i)] = i % experts;
  for (const Layout layout : {Layout::packed, Layout::grouped}) {
    const Caught error = caught([&] {
      one.comm.dispatch({.rows = {rows.data(), DataType::fp32, n, long_hidden},
                         .expert_ids = {ids.data(), DataType::int32, n, topk}, .layout = layout});
    });
    EXPECT_EQ(error.kind, "CapacityError");
    EXPECT_THAT(error.what, HasSubstr("make the communicator for this hidden, layout and alignment, or raise arena_bytes, or drop "
                                      "earlier results"));
    EXPECT_THAT(error.what, Not(HasSubstr("its capacity is")));
  }
}

TEST(errors, rows_that_cannot_be_say_what_of_them_is_wrong) {
  Alone one;
  std::vector<float> room(1024);
  float* const memory = room.data() + (16 - reinterpret_cast<std::uintptr_t>(room.data()) % 16) % 16 / sizeof(float);
  const auto dispatched = [&](const ConstTensorView& rows, Quantise quantise = Quantise::none) {
    DispatchArgs args = one.args(Layout::packed);
    args.rows = rows;
    args.quantise = quantise;
    return caught([&] { one.comm.dispatch(args); }).what;
  };
  EXPECT_THAT(dispatched({memory, DataType::fp32, tokens, 66}),
              HasSubstr("rows of 66 elements of fp32 have 264 bytes, which is not a multiple of 16 up to 65536"));
  EXPECT_THAT(dispatched({memory + 1, DataType::fp32, tokens, hidden}),
              HasSubstr("rows: every row must begin at a multiple of 16 bytes, but the pointer lies 4 behind one"));
  ConstTensorView apart{memory, DataType::fp32, tokens, hidden};
  apart.strides[0] = 66;
  EXPECT_THAT(dispatched(apart), HasSubstr("rows: every row must begin at a multiple of 16 bytes, but a stride of 66 elements has 264 bytes"));
  apart.strides[0] = -64;
  EXPECT_THAT(dispatched(apart), HasSubstr("rows: a stride of -64 elements is outside 0 to "));
  EXPECT_THAT(dispatched({memory, DataType::bf16, tokens, 24}, Quantise::e4m3),
              HasSubstr("rows of 24 elements, quantised to e4m3, have 24 bytes, which is not a multiple of 16 up to 65536"));
  EXPECT_THAT(dispatched({static_cast<const float*>(nullptr), DataType::fp32, tokens, hidden}),
              HasSubstr("rows has shape [4, 64] but a null pointer; null is legal only where the shape has a 0"));
}

TEST(errors, of_a_route_and_what_comes_back_on_it_say_the_cure) {
  Alone one;
  const auto sent = one.comm.dispatch(one.args(Layout::grouped));
  DispatchArgs again{.rows = one.args(Layout::packed).rows, .route = sent.route};
  EXPECT_THAT(caught([&] { one.comm.dispatch(again); }).what,
              HasSubstr("layout = packed, but the route was made with grouped; give that, or dispatch with ids"));
  EXPECT_THAT(caught([&] { one.comm.combine({.rows = sent.rows}); }).what, HasSubstr("no route is given; give DispatchResult::route"));
  EXPECT_THAT(caught([&] { one.comm.combine({.rows = {one.rows.data(), DataType::fp32, 1, hidden}, .route = sent.route}); }).what,
              HasSubstr("rows has shape [1, 64], but the dispatch of this route delivered 8 rows; give them all, padding included"));
  EXPECT_THAT(caught([&] { one.comm.combine({.rows = {one.rows.data(), DataType::e4m3, 8, hidden}, .route = sent.route}); }).what,
              HasSubstr("rows has element type e4m3; possible: bf16, fp16, fp32; combine the outputs of the experts, not the quantised"));
  EXPECT_THAT(caught([&] { one.comm.combine({.rows = {one.rows.data(), DataType::fp32, 8, 30}, .route = sent.route}); }).what,
              HasSubstr("rows of 30 elements of fp32 have 120 bytes"));
}

TEST(errors, a_limit_that_is_a_product_says_what_it_is) {
  Alone one;
  DispatchArgs args = one.args(Layout::packed);
  args.capacity = std::int64_t{1} << 45;
  EXPECT_THAT(caught([&] { one.comm.dispatch(args); }).what, HasSubstr(", the rows of this size that fit into the largest arena"));
  CommunicatorOptions options = small();
  options.layout = Layout::padded;
  options.capacity = std::int64_t{1} << 45;
  EXPECT_THAT(caught([&] { Alone never(options); }).what, HasSubstr(", the most rows of a tensor divided by experts"));
}

TEST(errors, the_memory_of_a_machine_is_told_in_gib_too) {
  CommunicatorOptions options = small();
  options.arena_bytes = std::int64_t{1} << 46;
  EXPECT_THAT(caught([&] { Alone never(options); }).what, ContainsRegex("need 1 x [0-9]+ bytes \\(65536.0 GiB\\), but [0-9]+ \\([0-9.]+ GiB\\) are"));
}

// What two ranks say, each with the arguments of a legal dispatch.
std::array<std::string, 2> said_by_two(const std::function<std::string(Communicator&, DispatchArgs)>& body) {
  auto groups = Group::threads(2);
  std::array<std::string, 2> said;
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank, group = std::move(groups[rank])] {
      Communicator comm(group, small());
      const std::vector<float> rows(tokens * hidden);
      const std::vector<int> ids(tokens, 0);
      said[rank] = body(comm, {.rows = {rows.data(), DataType::fp32, tokens, hidden},
                               .expert_ids = {ids.data(), DataType::int32, tokens, 1}});
    });
  }
  for (std::jthread& rank : ranks) rank.join();
  return said;
}

TEST(errors, routes_that_differ_are_named_by_the_calls_that_made_them) {
  const auto what = said_by_two([](Communicator& comm, DispatchArgs args) {
    const ConstTensorView ids = args.expert_ids;
    args.channel = 1;
    const auto first = comm.dispatch(args), second = comm.dispatch(args);
    const auto& used = comm.rank() == 0 ? first : second;
    const std::string said = caught([&] { comm.combine({.rows = used.rows, .route = used.route}).ready.wait(); }).what;
    args.expert_ids = {};
    args.route = first.route;
    if (comm.rank() == 1) args = {.rows = args.rows, .expert_ids = ids, .channel = 1};
    return said + caught([&] { comm.dispatch(args); }).what;
  });
  for (const std::string& said : what) {
    EXPECT_THAT(said, HasSubstr("ranks differ in route: rank 1 has that of dispatch number 2 on channel 1, rank 0 has that of "
                                "dispatch number 1 on channel 1"));
    EXPECT_THAT(said, HasSubstr("ranks differ in route: rank 1 has none, rank 0 has that of dispatch number 1 on channel 1"));
  }
}

TEST(errors, too_little_room_at_a_peer_says_all_that_may_help) {
  const auto what = said_by_two([](Communicator& comm, DispatchArgs args) {
    args.capacity = comm.rank() == 0 ? 1 : 0;
    return caught([&] { comm.dispatch(args); }).what;
  });
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
  setenv("SLUICE_CHECK", "", 1);
  EXPECT_NO_THROW(Communicator::size_of(small(), 1)) << "an empty variable is none";
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
