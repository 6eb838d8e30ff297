// Memory that all ranks of a launch see.
#pragma once

#include <sluice/group.h>

#include <cstddef>
#include <utility>

namespace sluice::cli {

class SharedBlock {
 public:
  SharedBlock() = default;
  // Zeroed; shared with the children that are forked later, and with threads. Throws std::system_error.
  explicit SharedBlock(std::size_t bytes);
  // Common to the processes of a group on one machine: rank 0 makes it, the others open it. Collective.
  SharedBlock(std::size_t bytes, const Group& group);
  SharedBlock(SharedBlock&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedBlock& operator=(SharedBlock&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedBlock();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::cli
