// Single elements of a row, at any alignment.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/numbers.h"

namespace sluice::cpu {

template <DataType type>
inline float element(const void* row, std::int64_t at) {
  typename numbers::Number<type>::Bits bits;
  std::memcpy(&bits, static_cast<const std::uint8_t*>(row) + at * size_of(type), sizeof bits);
  return numbers::Number<type>::to_float(bits);
}

template <DataType type>
inline void set_element(void* row, std::int64_t at, float x) {
  const auto bits = numbers::Number<type>::from_float(x);
  std::memcpy(static_cast<std::uint8_t*>(row) + at * size_of(type), &bits, sizeof bits);
}

}  // namespace sluice::cpu
