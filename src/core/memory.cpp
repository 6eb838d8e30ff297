#include "core/memory.h"

#include <algorithm>
#include <new>

#include <sluice/errors.h>

namespace sluice::core {

// The holder first, and outside of the lock that its destructor takes: what then fails is given back by it.
std::shared_ptr<HeldBlock> Memory::allocate(std::int64_t bytes, Owner owner, Arena::End end) {
  const auto held = std::make_shared<HeldBlock>(shared_from_this());
  const std::lock_guard lock(mutex_);
  held->block_ = arena_.allocate(bytes, owner, end);
  held_[held->block_.offset] = held;
  return held;
}

std::shared_ptr<HeldBlock> Memory::allocate_largest(std::int64_t most, Owner owner, std::string& holders) {
  const auto held = std::make_shared<HeldBlock>(shared_from_this());
  const std::lock_guard lock(mutex_);
  const std::int64_t wanted = align_up(most, Arena::unit), there = arena_.largest(wanted);
  if (there < wanted) holders = arena_.describe_use();
  held->block_ = arena_.allocate(std::max(there, Arena::unit), owner, Arena::End::low);
  held_[held->block_.offset] = held;
  return held;
}

bool Memory::covers(const void* pointer, std::int64_t bytes) {
  const auto block = contains(pointer) ? block_of(pointer) : nullptr;
  return block && bytes <= block->data() + block->bytes() - static_cast<const std::byte*>(pointer);
}

std::shared_ptr<HeldBlock> Memory::block_of(const void* pointer) {
  const std::int64_t offset = static_cast<const std::byte*>(pointer) - arena_base();
  std::shared_ptr<HeldBlock> held;  // outlives the lock: it may be the last owner, whose destructor locks
  const std::lock_guard lock(mutex_);
  auto it = held_.upper_bound(offset);
  if (it == held_.begin()) return nullptr;
  held = (--it)->second.lock();
  return held && offset < it->first + held->bytes() ? held : nullptr;
}

Place Memory::place_of(const void* pointer) const {
  if (!pointer) return {};
  return {window_.rank, 0, static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - window_.base)};
}

namespace {
// Memory with this use is never handed out again.
class Never final : public engine::LaneEvent {
 public:
  State state() const override { return State::failed; }
  bool wait(std::chrono::milliseconds) const override { return true; }
};
}  // namespace

HeldBlock::~HeldBlock() {
  if (block_.bytes == 0 || memory_->is_forked_copy()) return;
  try {
    give_back();
  } catch (const std::bad_alloc&) {  // the arena goes on without this block
  }
}

void HeldBlock::give_back() {
  for (void* const stream : streams_) {
    try {
      if (auto event = memory_->window_.event_on(stream)) Arena::add(uses_, std::move(event));
    } catch (const Error&) {
      uses_.push_back(std::make_shared<Never>());  // a stream that is gone says nothing any more
    }
  }
  const std::lock_guard lock(memory_->mutex_);
  memory_->held_.erase(block_.offset);
  // Memory that was never used still waits for what it waited for before.
  for (const auto& event : block_.after) Arena::add(uses_, event);
  memory_->arena_.free(block_, std::move(uses_));
}

void HeldBlock::used_until(const std::shared_ptr<engine::LaneEvent>& event) {
  const std::lock_guard lock(memory_->mutex_);
  std::erase_if(uses_, [](const auto& use) { return use->state() == engine::LaneEvent::State::happened; });
  Arena::add(uses_, event);
}

void HeldBlock::used_on(void* stream) {
  if (!memory_->window_.event_on) return;
  const std::lock_guard lock(memory_->mutex_);
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

void HeldBlock::shrink(std::int64_t bytes, const std::shared_ptr<engine::LaneEvent>& event) {
  const std::lock_guard lock(memory_->mutex_);
  try {
    memory_->arena_.shrink(block_, bytes, {event});
  } catch (const std::bad_alloc&) {  // it comes back with the block
  }
}

}  // namespace sluice::core
