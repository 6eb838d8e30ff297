#include "core/arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include <sluice/errors.h>

namespace sluice::core {
namespace {

class FakeEvent final : public engine::LaneEvent {
 public:
  State state() const override { return now; }
  bool wait(std::chrono::milliseconds) const override { return now != State::pending; }
  State now = State::pending;
};

TEST(arena, blocks_do_not_overlap_and_everything_comes_back) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  Arena arena(1 << 20);
  std::map<std::int64_t, Arena::Block> held;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 || held.empty()) {
      const auto bytes = static_cast<std::int64_t>(random() % 40000);
      if (arena.largest(bytes + Arena::unit) < bytes + Arena::unit) continue;
      const auto end = random() % 2 ? Arena::End::low : Arena::End::high;
      const Arena::Block block = arena.allocate(bytes, Owner::result, end);
      EXPECT_GE(block.bytes, bytes);
      EXPECT_EQ(block.offset % Arena::unit, 0);
      const auto next = held.lower_bound(block.offset);
      if (next != held.end()) { EXPECT_LE(block.offset + block.bytes, next->first); }
      if (next != held.begin()) { EXPECT_LE(std::prev(next)->first + std::prev(next)->second.bytes, block.offset); }
      held.emplace(block.offset, block);
    } else {
      auto it = held.begin();
      std::advance(it, static_cast<long>(random() % held.size()));
      if (random() % 3 == 0) arena.shrink(it->second, it->second.bytes / 2, {});
      else {
        arena.free(it->second, {});
        held.erase(it);
      }
    }
  }
  for (const auto& [offset, block] : held) arena.free(block, {});
  EXPECT_EQ(arena.describe_use(), "all of it free");
  EXPECT_EQ(arena.largest(1 << 30), 1 << 20);
}

TEST(arena, a_block_is_reused_behind_its_events_and_quiet_memory_comes_first) {
  Arena arena(4 * Arena::unit);
  const auto event = std::make_shared<FakeEvent>();
  const Arena::Block first = arena.allocate(2 * Arena::unit, Owner::result);
  arena.free(first, {event});
  EXPECT_TRUE(arena.allocate(2 * Arena::unit, Owner::result).after.empty());
  const Arena::Block again = arena.allocate(2 * Arena::unit, Owner::result);
  EXPECT_EQ(again.offset, first.offset);
  ASSERT_EQ(again.after.size(), 1u);
  EXPECT_EQ(again.after.front(), event);
}

TEST(arena, neighbours_with_pending_events_join_when_nothing_else_is_left) {
  Arena arena(4 * Arena::unit);
  const auto a = std::make_shared<FakeEvent>(), b = std::make_shared<FakeEvent>();
  const Arena::Block low = arena.allocate(2 * Arena::unit, Owner::result), high = arena.allocate(2 * Arena::unit, Owner::result);
  arena.free(low, {a});
  arena.free(high, {b});
  EXPECT_EQ(arena.allocate(4 * Arena::unit, Owner::input).after.size(), 2u);
}

TEST(arena, of_the_events_of_one_channel_only_the_last_is_kept) {
  Arena arena(4 * Arena::unit);
  const auto event = [](int channel, std::int64_t number) {
    auto made = std::make_shared<FakeEvent>();
    made->order = {channel, number};
    return made;
  };
  const auto early = event(0, 1), late = event(0, 2), other = event(1, 1), none = event(-1, 0);
  Arena::Events events;
  for (const auto& next : {late, early, other, none, other, none}) Arena::add(events, next);
  EXPECT_EQ(events, (Arena::Events{late, other, none}));
  std::vector<Arena::Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(arena.allocate(1, Owner::result));
  arena.free(blocks[0], {early});
  arena.free(blocks[1], {late});
  arena.free(blocks[2], {other});
  arena.free(blocks[3], {early});
  EXPECT_EQ(arena.allocate(4 * Arena::unit, Owner::result).after, (Arena::Events{late, other}));
}

TEST(arena, memory_of_a_failed_operation_is_never_handed_out_again) {
  Arena arena(4 * Arena::unit);
  const auto event = std::make_shared<FakeEvent>();
  arena.free(arena.allocate(2 * Arena::unit, Owner::result), {event});
  event->now = engine::LaneEvent::State::failed;
  EXPECT_EQ(arena.largest(1 << 20), 2 * Arena::unit);
  arena.allocate(2 * Arena::unit, Owner::route);
  try {
    arena.allocate(1, Owner::result);
    FAIL() << "the lost block was handed out";
  } catch (const CapacityError& error) {
    EXPECT_NE(std::string(error.what()).find("routes hold 512"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("512 lost to failed operations"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sluice::core
