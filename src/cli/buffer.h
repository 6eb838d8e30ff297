// Aligned memory of one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace sluice::cli {

// Page-aligned and touched.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(
            std::aligned_alloc(4096, (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096))) {
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_, 1, bytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

}  // namespace sluice::cli
