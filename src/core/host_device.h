// Marks functions that the host and the device compile alike.
#pragma once

#if defined(__CUDACC__)
#define SLUICE_HD __host__ __device__
#else
#define SLUICE_HD
#endif

// Before a loop that seldom turns: a small kernel spends most of its time on fetching its instructions.
#if defined(__CUDA_ARCH__)
#define SLUICE_ROLLED _Pragma("unroll 1")
#else
#define SLUICE_ROLLED
#endif
