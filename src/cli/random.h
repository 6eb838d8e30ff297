// Seeded numbers that are the same on every machine, compiler and C++ library: std:: distributions are
// not, so none is used.
#pragma once

#include <cstdint>

namespace sluice::cli {

// A good 64-bit mixture: equal inputs give equal outputs, neighbouring inputs unrelated ones.
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  return mix(mix(a) ^ (b + 0x2545F4914F6CDD1Du));
}

class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(mix(seed)) {}

  std::uint64_t next() noexcept { return mix(state_++); }
  // In [0, n); the bias of the multiplication is below n / 2^64.
  std::uint64_t below(std::uint64_t n) noexcept {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }
  // In [0, 1), a multiple of 2^-53.
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Mean 0, variance 1: the sum of twelve 16-bit uniforms. Exact in every arithmetic; never beyond 6.
  double normal() noexcept {
    std::int64_t sum = 0;
    for (int draw = 0; draw < 3; ++draw) {
      const std::uint64_t v = next();
      for (int part = 0; part < 64; part += 16) sum += static_cast<std::int64_t>((v >> part) & 0xFFFF);
    }
    return static_cast<double>(sum - 6 * 65535) * 0x1p-16;
  }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::cli
