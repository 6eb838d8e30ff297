// A heap that has nothing to give, once: for programs of tests with an operator new of their own, which asks here.
#pragma once

// Allocations of this thread that still succeed before one fails; negative: none fails.
inline thread_local int allocations_left = -1;

inline bool allocation_fails() { return allocations_left >= 0 && allocations_left-- == 0; }
