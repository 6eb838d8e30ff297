// The arena with its lock, and the blocks that results, routes and operations hold.
#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/slices.h"
#include "engine/engine.h"

namespace sluice::core {

class HeldBlock;

// Shared by a communicator and everything that it handed out; outlives the communicator.
class Memory : public std::enable_shared_from_this<Memory> {
 public:
  explicit Memory(const engine::WindowView& window) : window_(window), arena_(window.arena_bytes) {}

  std::shared_ptr<HeldBlock> allocate(std::int64_t bytes, Owner owner, Arena::End end);
  // A block for what `lay_out(Slices&)` takes, from the high end: it runs once to measure, and once in the block.
  template <class LayOut>
  std::shared_ptr<HeldBlock> allocate_for(Owner owner, const LayOut& lay_out);
  // At most `most` bytes, at least one unit; whatever the largest free gap allows.
  // `holders` tells who has the rest when that is less.
  std::shared_ptr<HeldBlock> allocate_largest(std::int64_t most, Owner owner, std::string& holders);

  std::byte* arena_base() const { return window_.base + window_.arena_offset; }
  bool contains(const void* pointer) const {
    const auto* const at = static_cast<const std::byte*>(pointer);
    return at >= arena_base() && at < arena_base() + window_.arena_bytes;
  }
  // Whether so many bytes from `pointer` on lie in one block.
  bool covers(const void* pointer, std::int64_t bytes);
  // The block under a pointer into the arena; null when it was freed.
  std::shared_ptr<HeldBlock> block_of(const void* pointer);
  Place place_of(const void* pointer) const;

 private:
  friend class HeldBlock;
  // In a forked child the lock may be held by a thread that does not exist, and nobody uses the memory any more.
  bool is_forked_copy() const { return getpid() != process_; }

  const pid_t process_ = getpid();
  engine::WindowView window_;
  std::mutex mutex_;
  Arena arena_;
  std::map<std::int64_t, std::weak_ptr<HeldBlock>> held_;  // by offset
};

// A block that goes back to the arena with its last owner, to be reused after all events of its uses.
class HeldBlock {
 public:
  explicit HeldBlock(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  ~HeldBlock();
  HeldBlock(const HeldBlock&) = delete;
  HeldBlock& operator=(const HeldBlock&) = delete;

  std::byte* data() const { return memory_->arena_base() + block_.offset; }
  std::int64_t bytes() const { return block_.bytes; }
  bool lies_in(const Memory& memory) const { return memory_.get() == &memory; }
  // To wait for before the memory is touched.
  const Arena::Events& after() const { return block_.after; }
  void used_until(const std::shared_ptr<engine::LaneEvent>& event);
  // What this native queue holds when the block is dropped has passed before it is reused.
  void used_on(void* stream);
  // Gives the rest back; peers may write there until `event`.
  void shrink(std::int64_t bytes, const std::shared_ptr<engine::LaneEvent>& event);

 private:
  friend class Memory;
  void give_back();

  std::shared_ptr<Memory> memory_;
  Arena::Block block_;  // of no bytes until Memory has one
  Arena::Events uses_;
  std::vector<void*> streams_;
};

template <class LayOut>
std::shared_ptr<HeldBlock> Memory::allocate_for(Owner owner, const LayOut& lay_out) {
  Slices measure;
  lay_out(measure);
  auto block = allocate(measure.bytes(), owner, Arena::End::high);
  Slices slices(block->data());
  lay_out(slices);
  return block;
}

}  // namespace sluice::core
