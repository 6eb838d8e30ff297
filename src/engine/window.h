// The windows of the node's ranks in this process's address space, and how ranks agree that all have theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "boot/group_state.h"

namespace sluice::engine {

// Runs a step of creation, and hears how the others' went: a rank that cannot go on says so where they would wait
// for it. Collective, and a barrier. Throws what `step` threw (in boot::Told where that is no Error), on the peers PeerError.
void together(boot::GroupState& group, const std::function<void()>& step);

// Ranks that are threads: fills `all`, where each rank has put its own, with those of the others. Collective.
template <class T>
void share_objects(boot::GroupState& group, std::vector<std::shared_ptr<T>>& all) {
  const auto objects = group.exchange_objects(all[static_cast<std::size_t>(group.rank())]);
  for (std::size_t r = 0; r < all.size(); ++r) all[r] = std::static_pointer_cast<T>(objects[r]);
}

// A mapping that ends with its last owner.
class Mapping {
 public:
  Mapping(void* base, std::size_t bytes) : base_(static_cast<std::byte*>(base)), bytes_(bytes) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* base() const { return base_; }

 private:
  std::byte* base_;
  std::size_t bytes_;
};

// Own window and those of all peers. Ranks that are threads share plain memory, kept until the last
// engine that maps it has gone; ranks that are processes map each other's memfd. Pages are taken from
// the system when they are first touched.
class Windows {
 public:
  // Makes the own window, zero filled. Collective. Throws SystemError naming need and free memory, on the
  // peers PeerError.
  Windows(boot::GroupState& group, std::int64_t bytes);

  // Maps the peers'. Collective, and a barrier: what was written to the own window before is visible
  // to a peer that has returned.
  void connect(boot::GroupState& group);

  const std::shared_ptr<Mapping>& own() const { return mappings_[static_cast<std::size_t>(rank_)]; }
  const std::shared_ptr<Mapping>& mapping(int rank) const { return mappings_[static_cast<std::size_t>(rank)]; }
  std::byte* of(int rank) const { return mappings_[static_cast<std::size_t>(rank)]->base(); }

 private:
  void take(boot::GroupState& group, std::int64_t bytes);
  void map_peer(int rank, int fd);

  int rank_;
  std::size_t bytes_;
  boot::UniqueFd memory_;
  std::vector<std::shared_ptr<Mapping>> mappings_;
};

}  // namespace sluice::engine
