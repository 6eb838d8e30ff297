// Hands out typed pieces of one block, or, without memory, only adds up how much they need: so that a
// layout is written once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/place.h"

namespace sluice::core {

class Slices {
 public:
  Slices() = default;  // measures
  explicit Slices(std::byte* base) : base_(base) {}

  // `count` elements, aligned to 64 bytes; null when measuring.
  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t at = bytes_;
    bytes_ = align_up(bytes_ + count * static_cast<std::int64_t>(sizeof(T)), 64);
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace sluice::core
