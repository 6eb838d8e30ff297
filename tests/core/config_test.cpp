#include "core/config.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include <sluice/errors.h>
#include <sluice/limits.h>

#include "core/routing.h"

namespace sluice::core {
namespace {

std::string refusal_of(const CommunicatorOptions& options, int ranks) {
  try {
    resolve(options, 0, ranks, 0);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

TEST(S2, experts_that_do_not_divide_without_a_split_are_one_clear_error) {
  CommunicatorOptions options;
  options.experts = 10;
  EXPECT_EQ(refusal_of(options, 4),
            "communicator on rank 0: experts = 10 is not divisible by 4 ranks; give first_expert for an uneven split");
  options.first_expert = {0, 1, 1, 9, 10};
  const Config config = resolve(options, 2, 4, 0);
  for (int e = 0; e < 10; ++e) {
    const int owner = config.topology.owner_of(e);
    EXPECT_LE(config.topology.first_expert[owner], e);
    EXPECT_LT(e, config.topology.first_expert[owner + 1]);
  }
  options.first_expert = {0, 5, 4, 9, 10};
  EXPECT_NE(refusal_of(options, 4).find("must ascend"), std::string::npos);
}

TEST(S3, row_bytes_are_a_multiple_of_16_up_to_65536) {
  CommunicatorOptions options;
  for (const std::int64_t hidden : {8, 2880, 7168, 32768}) {
    options.hidden = hidden;
    EXPECT_EQ(refusal_of(options, 1), "") << hidden;
  }
  options.hidden = 0;
  EXPECT_NE(refusal_of(options, 1).find("hidden = 0 is outside 1 to 65536"), std::string::npos);
  for (const std::int64_t hidden : {7, 4100 + 1, 32776}) {
    options.hidden = hidden;
    EXPECT_NE(refusal_of(options, 1).find("not a multiple of 16 up to 65536"), std::string::npos) << hidden;
  }
}

TEST(options, types_that_dispatch_does_not_move_are_refused_when_the_communicator_is_made) {
  CommunicatorOptions options;
  for (const DataType type : {DataType::int32, DataType::int64}) {
    options.dtype = type;
    EXPECT_EQ(refusal_of(options, 1), std::string("communicator on rank 0: dtype has element type ") + name_of(type) +
                                          "; possible: bf16, fp16, fp32, e4m3, e5m2, int8, uint8, fp4x2");
  }
}

TEST(size, the_terms_add_up_to_the_window) {
  for (const Layout layout : {Layout::packed, Layout::grouped, Layout::padded}) {
    CommunicatorOptions options;
    options.layout = layout;
    options.max_tokens = 100;
    const WindowSize size = resolve(options, 0, 4, 12345).size;
    std::int64_t sum = 0;
    for (const SizeTerm& term : size.terms) sum += term.bytes;
    EXPECT_EQ(sum, size.window_bytes);
    EXPECT_EQ(size.window_bytes - size.arena_bytes, size.terms.front().bytes);
  }
}

TEST(F3, a_difference_is_named_with_both_values) {
  CommunicatorOptions a, b;
  b.max_tokens = 256;
  const std::string texts[] = {agreement_of(a), agreement_of(a), agreement_of(b)};
  std::vector<std::vector<std::byte>> messages;
  for (const std::string& text : texts) {
    messages.emplace_back(text.size());
    std::memcpy(messages.back().data(), text.data(), text.size());
  }
  try {
    check_agreement(messages, 1);
    FAIL();
  } catch (const ArgumentError& error) {
    EXPECT_STREQ(error.what(), "communicator on rank 1: rank 2 was made with max_tokens = 256, rank 0 with 4096; give all "
                               "ranks the same options");
  }
  messages.pop_back();
  EXPECT_NO_THROW(check_agreement(messages, 1));
}

// Positions for counts whose sums pass 2^31: the same tables, filled by hand.
TEST(S5, positions_are_exact_beyond_2_31) {
  constexpr std::int64_t big = 3'000'000'000;
  std::int32_t send_index[2] = {2'000'000'000, -1}, slot_index[1] = {2'000'000'000}, expert_of[1] = {1};
  std::int64_t base[2] = {big, 0}, limit[2] = {big * 2, big}, start[2] = {0, big}, expert_base[2] = {0, big + 1};
  RouteTables route;
  route.layout = Layout::grouped;
  route.tokens = 1;
  route.topk = 1;
  route.ranks = 2;
  route.send_index = send_index;
  route.slot_index = slot_index;
  route.expert_of = expert_of;
  route.packed_base = base;
  route.limit = limit;
  route.expert_start = start;
  route.expert_base = expert_base;
  EXPECT_EQ(packed_index(route, 0, 0), 5'000'000'000);
  EXPECT_EQ(packed_index(route, 0, 1), -1);
  EXPECT_EQ(slot_row(route, 0, 0, 0), 5'000'000'001);
  EXPECT_EQ(slot_row(route, 0, 0, 1), -1) << "beyond the capacity of rank 1";
  route.layout = Layout::padded;
  EXPECT_EQ(slot_row(route, 0, 0, 1), 5'000'000'001) << "2 000 000 001 rows into the expert, within its capacity";
}

}  // namespace
}  // namespace sluice::core
