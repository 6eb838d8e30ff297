// Element types by their definition: one value at a time, slow and plain. Written apart from the
// library, so that a mistake in one is seen by the other.
#pragma once

#include <sluice/sluice.h>

#include <cstddef>
#include <cstdint>

namespace conformance {

using sluice::DataType;

// The value of one bf16, fp16, fp32 or e4m3 element.
float to_float(DataType type, const void* element);

// To nearest even, overflow to infinity (e4m3: saturating), a NaN becomes the type's canonical NaN.
void from_float(DataType type, float value, void* element);

// Unit roundoff and smallest subnormal of bf16, fp16 and fp32, as the bound of V3 takes them.
double unit_roundoff(DataType type);
double smallest_subnormal(DataType type);

// splitmix64: the same numbers everywhere.
std::uint64_t mix(std::uint64_t x);

struct Random {
  std::uint64_t state;
  explicit Random(std::uint64_t seed) : state(mix(seed)) {}
  std::uint64_t next();
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double normal();
  bool chance(double p) { return unit() < p; }
};

// How the elements of a made-up row look.
enum class Fill {
  tame,   // finite, between 2^-4 and 2^4 in size, either sign
  wild,   // as tame, but one in sixteen is a NaN, an infinity, a zero, a subnormal or near the largest
  noise,  // random bits
};

// `n` elements that depend on `key` alone.
void fill_row(std::uint64_t key, DataType type, std::int64_t n, Fill fill, void* out);

// Two floats with equal bits.
bool same_bits(float a, float b);

}  // namespace conformance
