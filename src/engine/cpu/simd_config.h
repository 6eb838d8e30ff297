// Included before any Highway header, so that every file is built for the same targets.
#pragma once

// The rows count on vectors whose size the compiler knows. Machines with scalable vectors run their
// fixed-size target (NEON) or the scalar one. SSSE3 without SSE4 is not worth a fifth of the compile time.
#define SLUICE_UNUSED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

// A compiler under a sanitizer takes minutes for each target: there, the lowest and AVX2 must do.
#if defined(SLUICE_FEW_TARGETS)
#define HWY_DISABLED_TARGETS (SLUICE_UNUSED_TARGETS | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS SLUICE_UNUSED_TARGETS
#endif
