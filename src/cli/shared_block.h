// Memory that all ranks of a launch see.
#pragma once

#include <sluice/group.h>

#include <cstddef>

namespace sluice::cli {

class SharedBlock {
 public:
  // Zeroed; shared with the children that are forked later, and with threads. Throws std::runtime_error.
  explicit SharedBlock(std::size_t bytes);
  // Common to the processes of a group on one machine: rank 0 makes it, the others open it. Collective.
  SharedBlock(std::size_t bytes, const Group& group);
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;
  ~SharedBlock();

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::cli
