// Where the threads of this process stand, for a test that hangs.
#pragma once

namespace conformance {

// To stderr: "module(+offset)" of each frame of each thread, which addr2line reads.
void print_stacks();

}  // namespace conformance
