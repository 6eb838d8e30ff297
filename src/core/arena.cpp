#include "core/arena.h"

#include <algorithm>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "core/place.h"

namespace sluice::core {

namespace {
const char* name_of(Owner owner) {
  constexpr const char* names[] = {"dispatch results", "routes", "combine inputs", "temporary blocks"};
  return names[static_cast<int>(owner)];
}
bool has(const Arena::Events& events, engine::LaneEvent::State state) {
  return std::any_of(events.begin(), events.end(), [&](const auto& event) { return event->state() == state; });
}
}  // namespace

Arena::Arena(std::int64_t bytes) : bytes_(bytes / unit * unit) {
  if (bytes_ > 0) gaps_.emplace(0, Gap{bytes_, {}});
}

void Arena::add(Events& events, const std::shared_ptr<engine::LaneEvent>& event) {
  for (auto& other : events) {
    const bool of_one_channel = event->order.channel >= 0 && other->order.channel == event->order.channel;
    if (other != event && !of_one_channel) continue;
    if (other->order.number < event->order.number) other = event;
    return;
  }
  events.push_back(event);
}

void Arena::forget_happened(Events& events) {
  std::erase_if(events, [](const auto& event) { return event->state() == engine::LaneEvent::State::happened; });
}

// Joins neighbours that wait for the same events; with `all`, any neighbours, waiting for both's.
void Arena::settle(bool all) {
  for (auto it = gaps_.begin(); it != gaps_.end();) {
    forget_happened(it->second.after);
    const bool lost = has(it->second.after, engine::LaneEvent::State::failed);
    if (lost) lost_ += it->second.bytes;
    it = lost ? gaps_.erase(it) : std::next(it);
  }
  for (auto first = gaps_.begin(); first != gaps_.end();) {
    const auto second = std::next(first);
    if (second == gaps_.end()) break;
    Gap& gap = first->second;
    if (first->first + gap.bytes != second->first || (!all && gap.after != second->second.after)) {
      first = second;
      continue;
    }
    for (const auto& event : second->second.after) add(gap.after, event);
    gap.bytes += second->second.bytes;
    gaps_.erase(second);
  }
}

// A gap without pending events first: waiting for another channel's operation is the second choice, and
// joining gaps that wait for different events the last.
Arena::Gaps::iterator Arena::find(std::int64_t bytes, End end) {
  for (const bool all : {false, true}) {
    settle(all);
    Gaps::iterator busy = gaps_.end(), quiet = gaps_.end();
    for (auto it = gaps_.begin(); it != gaps_.end(); ++it) {
      if (it->second.bytes < bytes) continue;
      Gaps::iterator& found = it->second.after.empty() ? quiet : busy;
      if (found == gaps_.end() || end == End::high) found = it;
    }
    if (quiet != gaps_.end()) return quiet;
    if (busy != gaps_.end()) return busy;
  }
  return gaps_.end();
}

Arena::Block Arena::allocate(std::int64_t bytes, Owner owner, End end) {
  const std::int64_t size = std::max(unit, align_up(bytes, unit));
  const auto it = find(size, end);
  if (it == gaps_.end()) {
    throw CapacityError(fmt::format("the arena has no free block of {} bytes: the largest is {} of {} bytes ({}); "
                                    "make the communicator for this hidden, layout and alignment, or raise arena_bytes, or "
                                    "drop earlier results and routes",
                                    size, largest(bytes_), bytes_, describe_use()));
  }
  const std::int64_t start = it->first, left = it->second.bytes - size;
  const std::int64_t offset = end == End::low ? start : start + left;
  Block block{offset, size, it->second.after};
  blocks_.emplace(offset, std::pair(size, owner));
  // From here on nothing takes memory: an arena whose host has none stays whole.
  if (left == 0) {
    gaps_.erase(it);
    return block;
  }
  it->second.bytes = left;
  if (end == End::low) {
    auto gap = gaps_.extract(it);
    gap.key() = start + size;
    gaps_.insert(std::move(gap));
  }
  return block;
}

std::int64_t Arena::largest(std::int64_t most) {
  std::int64_t best = 0;
  for (const bool all : {false, true}) {
    settle(all);
    for (const auto& [offset, gap] : gaps_) best = std::max(best, gap.bytes);
    if (best >= most) break;
  }
  return std::min(best, most);
}

void Arena::shrink(Block& block, std::int64_t bytes, const Events& after) {
  const std::int64_t size = std::max(unit, align_up(bytes, unit));
  if (size >= block.bytes) return;
  insert_gap(block.offset + size, block.bytes - size, after);
  block.bytes = size;
  blocks_.at(block.offset).first = size;
}

void Arena::free(const Block& block, Events uses) {
  const auto it = blocks_.find(block.offset);
  if (it == blocks_.end()) return;
  insert_gap(block.offset, block.bytes, std::move(uses));
  blocks_.erase(it);
}

void Arena::insert_gap(std::int64_t offset, std::int64_t bytes, Events after) {
  gaps_.emplace(offset, Gap{bytes, std::move(after)});
}

std::string Arena::describe_use() const {
  std::map<Owner, std::int64_t> use;
  for (const auto& [offset, block] : blocks_) use[block.second] += block.first;
  std::string text;
  for (const auto& [owner, bytes] : use) text += fmt::format("{}{} hold {}", text.empty() ? "" : ", ", name_of(owner), bytes);
  if (lost_ > 0) text += fmt::format("{}{} lost to failed operations", text.empty() ? "" : ", ", lost_);
  return text.empty() ? "all of it free" : text;
}

}  // namespace sluice::core
