// Included before any Highway header, so that every file is built for the same targets.
#pragma once

// The rows count on vectors whose size the compiler knows. Machines with scalable vectors run their
// fixed-size target (NEON) or the scalar one. SSSE3 without SSE4 is not worth a fifth of the compile time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
