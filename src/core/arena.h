// The allocator of the arena: blocks in units of 256 bytes, by first fit, shrunk in place. It knows
// offsets only, never memory. Blocks are reused by event, not by lane order: a freed block carries the
// events after which nobody touches it, and whoever gets the memory next waits for them (A6).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace sluice::core {

// What a block holds, for messages.
enum class Owner { result, route, input, temporary };

class Arena {
 public:
  using Events = std::vector<std::shared_ptr<engine::LaneEvent>>;
  // Keeps the last of each channel: a host that runs far ahead would else collect them.
  static void add(Events& events, const std::shared_ptr<engine::LaneEvent>& event);
  static constexpr std::int64_t unit = 256;

  struct Block {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;  // a multiple of unit
    Events after;            // to wait for before the memory is touched
  };

  enum class End { low, high };  // short-lived blocks from the low end, long-lived small ones from the high end

  explicit Arena(std::int64_t bytes);

  // Throws CapacityError with need, free and use by owner. bytes >= 0; 0 takes one unit.
  Block allocate(std::int64_t bytes, Owner owner, End end = End::low);

  // The largest block of at most `most` bytes that can be had now.
  std::int64_t largest(std::int64_t most);

  // Gives back all of the block beyond `bytes`. The rest was published to peers: `after` as in free().
  void shrink(Block& block, std::int64_t bytes, const Events& after);

  // `uses`: events after which the memory is quiet. Memory whose event fails is never handed out again:
  // a peer of a failed operation may still write there.
  void free(const Block& block, Events uses);

  // Who has how much, for a sentence.
  std::string describe_use() const;

 private:
  struct Gap {
    std::int64_t bytes = 0;
    Events after;
  };
  using Gaps = std::map<std::int64_t, Gap>;

  Gaps::iterator find(std::int64_t bytes, End end);
  void insert_gap(std::int64_t offset, std::int64_t bytes, Events after);
  static void forget_happened(Events& events);
  void settle(bool all);

  std::int64_t bytes_;
  Gaps gaps_;
  std::map<std::int64_t, std::pair<std::int64_t, Owner>> blocks_;  // offset -> bytes, owner
  std::int64_t lost_ = 0;
};

}  // namespace sluice::core
