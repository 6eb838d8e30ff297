// Prints the SIMD targets that this machine and build can run, best first, one a line.
#include <cstdio>

#include "engine/cpu/rows.h"

int main() {
  for (int i = 0; i < sluice::cpu::simd_target_count(); ++i) std::puts(sluice::cpu::simd_target_name(i));
}
