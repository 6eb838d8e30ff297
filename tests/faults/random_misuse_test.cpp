// S4 and F3 at random: whatever two ranks pass, right or wrong, each call ends with a result or an error on both,
// and the communicator goes on. What a view claims to be memory is memory.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sluice/sluice.h>

namespace {

using namespace sluice;

constexpr int ranks = 2, experts = 8, hidden = 64, most_tokens = 16;
constexpr unsigned rounds = 1500;

using Random = std::mt19937;

template <class T>
T one_of(Random& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

// Room for whatever the calls below claim.
struct Memory {
  std::vector<std::uint16_t> rows = std::vector<std::uint16_t>(2 * most_tokens * hidden, 0x3f80);
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(2 * most_tokens * 65);
  std::vector<float> weights = std::vector<float>(2 * most_tokens * 65, 0.25f);
  std::vector<float> scales = std::vector<float>(2 * most_tokens * 300, 1.0f);
  std::vector<std::uint8_t> mask = std::vector<std::uint8_t>(2 * most_tokens * ranks, 1);
};

// What ranks decide together, unless one of them is odd in this round; what each decides for itself.
struct Round {
  Random common, own;
  bool odd = false;

  Round(unsigned seed, unsigned round, int rank) : common(seed + 1000 * round), own(seed + 1000 * round + 17 + static_cast<unsigned>(rank)) {
    odd = own() % 6 == 0;
  }
  Random& maybe_common() { return odd ? own : common; }
  bool seldom() { return odd && own() % 5 == 0; }
};

void fill_ids(Memory& memory, Round& round, std::int64_t topk) {
  const auto k = static_cast<std::size_t>(topk > 0 ? topk : 1);
  for (std::size_t i = 0; i < memory.ids.size(); ++i) memory.ids[i] = static_cast<std::int32_t>((i / k + i % k) % experts);
  if (round.own() % 10 == 0) memory.ids[round.own() % 32] = static_cast<std::int32_t>(round.own() % 1000) - 500;
}

DispatchArgs dispatch_args(Memory& memory, Round& round, const Route& route) {
  DispatchArgs args;
  std::int64_t tokens = round.own() % (most_tokens + 1), topk = one_of<std::int64_t>(round.common, {1, 2, 4});
  if (round.seldom()) tokens = one_of<std::int64_t>(round.own, {-1, 17, 1'000'000});
  if (round.seldom()) topk = one_of<std::int64_t>(round.own, {0, 5, 65, -3});
  fill_ids(memory, round, topk);
  args.rows = ConstTensorView(memory.rows.data(), DataType::bf16, tokens, hidden);
  if (round.seldom()) args.rows.dtype = static_cast<DataType>(round.own() % 20);
  if (round.seldom()) args.rows.data = nullptr;
  if (round.seldom()) args.rows.strides[0] = one_of<std::int64_t>(round.own, {-64, 0, 32, 1});
  switch (round.common() % 6) {
    case 0: args.rank_mask = ConstTensorView(memory.mask.data(), DataType::uint8, tokens, ranks); break;
    case 1: args.route = route; break;
    default: args.expert_ids = ConstTensorView(memory.ids.data(), DataType::int32, tokens, topk);
  }
  if (round.seldom()) args.expert_ids = ConstTensorView(memory.ids.data(), DataType::int32, tokens, topk);
  if (round.common() % 2) args.weights = ConstTensorView(memory.weights.data(), DataType::fp32, tokens, topk);
  if (round.common() % 5 == 0) {
    args.scales = ConstTensorView(memory.scales.data(), DataType::fp32, tokens, one_of<std::int64_t>(round.maybe_common(), {1, 2, -1, 300}));
  }
  args.layout = static_cast<Layout>(round.seldom() ? round.own() % 200 : round.maybe_common()() % 3);
  args.counts = static_cast<Counts>(round.seldom() ? round.own() % 200 : round.common() % 2);
  args.on_overflow = static_cast<OnOverflow>(round.common() % 2);
  args.quantise = static_cast<Quantise>(round.seldom() ? round.own() % 99 : round.common() % 8 == 0 ? 1 : 0);
  args.scale_layout = static_cast<ScaleLayout>(round.maybe_common()() % 2);
  args.checks = static_cast<Checks>(round.own() % 3);
  args.zero_padding = round.own() % 2;
  args.capacity = round.seldom() ? one_of<std::int64_t>(round.own, {-5, 1, 3, std::int64_t{1} << 40}) : 0;
  args.alignment = round.seldom() ? one_of<std::int64_t>(round.own, {0, -1, 8, std::int64_t{1} << 40}) : 1;
  args.num_sms = round.seldom() ? one_of<int>(round.own, {-1, 100}) : 0;
  return args;
}

CombineArgs combine_args(Memory& memory, Round& round, const TensorView& rows, const Route& route) {
  CombineArgs args;
  args.rows = rows;
  args.route = route;
  if (round.seldom()) args.rows.shape[0] = one_of<std::int64_t>(round.own, {0, 1, -1, std::int64_t{1} << 50});
  if (round.seldom()) args.rows.dtype = static_cast<DataType>(round.own() % 30);
  if (round.seldom()) args.rows.data = nullptr;
  if (round.seldom()) args.rows.strides[0] = one_of<std::int64_t>(round.own, {0, -1, 1});
  if (round.seldom()) args.weights = ConstTensorView(memory.weights.data(), DataType::fp32, one_of<std::int64_t>(round.own, {0, 1, 16}));
  args.single_rounding = round.common() % 2;
  args.num_sms = round.seldom() ? -7 : 0;
  return args;
}

// What one rank saw.
struct Seen {
  int dispatched = 0, combined = 0, errors = 0;
  std::string broken;
};

Seen play(const Group& group, unsigned seed) {
  CommunicatorOptions options;
  options.max_tokens = most_tokens;
  options.hidden = hidden;
  options.topk = 4;
  options.experts = experts;
  options.deadline_ms = 20'000;
  Communicator comm(group, options);
  Memory memory;
  Route route;
  TensorView rows;
  Seen seen;
  for (unsigned i = 0; i < rounds; ++i) {
    Round round(seed, i, group.rank());
    group.barrier();
    try {
      if (route.valid() && round.common() % 3 == 0) {
        comm.combine(combine_args(memory, round, rows, route)).ready.wait();
        ++seen.combined;
        continue;
      }
      const DispatchResult sent = comm.dispatch(dispatch_args(memory, round, route));
      sent.ready.wait();
      ++seen.dispatched;
      route = sent.route;
      rows = sent.rows;
    } catch (const Error& error) {
      ++seen.errors;
      const std::string text = error.what();
      if (text.find("make a new communicator") == std::string::npos) continue;
      seen.broken = "round " + std::to_string(i) + ": " + text;
      return seen;
    }
  }
  return seen;
}

TEST(S4, random_arguments_never_break_a_communicator) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::vector<Group> groups = Group::threads(ranks);
  Seen seen[ranks];
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { seen[r] = play(groups[static_cast<std::size_t>(r)], seed); });
  for (std::thread& thread : threads) thread.join();
  for (const Seen& of : seen) {
    EXPECT_EQ(of.broken, "");
    // An operation succeeds everywhere or nowhere.
    EXPECT_EQ(of.dispatched, seen[0].dispatched);
    EXPECT_EQ(of.combined, seen[0].combined);
    EXPECT_GT(of.dispatched, 50);
    EXPECT_GT(of.combined, 50);
    EXPECT_GT(of.errors, 100);
  }
}

}  // namespace
