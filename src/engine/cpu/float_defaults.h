// The arithmetic that promise V3 assumes: rounding to nearest even, subnormals kept, no trap. A thread inherits
// its creator's mode, and frameworks switch subnormals off (flush to zero), so whoever runs a kernel sets it.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace sluice::cpu {

class FloatDefaults {
 public:
  FloatDefaults() : before_(get()) { set((before_ & ~mode_bits) | no_traps); }
  // The flags of what happened meanwhile go too.
  ~FloatDefaults() { set(before_); }
  FloatDefaults(const FloatDefaults&) = delete;
  FloatDefaults& operator=(const FloatDefaults&) = delete;

 private:
#if defined(__x86_64__)
  using Register = std::uint32_t;
  static constexpr Register mode_bits = 0x8040 | 0x6000;  // FTZ, DAZ, rounding
  static constexpr Register no_traps = 0x1f80;
  static Register get() { return _mm_getcsr(); }
  static void set(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = std::uint64_t;
  static constexpr Register mode_bits = (Register{1} << 24) | (Register{3} << 22) | 0x9f00;  // FZ, rounding, traps
  static constexpr Register no_traps = 0;
  static Register get() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Register = std::uint32_t;
  static constexpr Register mode_bits = 0, no_traps = 0;
  static Register get() { return 0; }
  static void set(Register) {}
#endif
  Register before_;
};

}  // namespace sluice::cpu
