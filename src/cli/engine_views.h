// Arguments where an engine's calls may name them, and results where the host can read them. On the CPU
// engine both are the memory itself.
#pragma once

#include <sluice/communicator.h>

#include <cstring>

#include "cli/caller_memory.h"
#include "cli/common_flags.h"

namespace sluice::cli {

// Before anything else that a rank does: every rank takes its GPU.
void take_gpu(const CommonFlags& flags, const RankContext& context);

MemoryKind memory_kind(const Communicator& comm);

// The rows, scales, ids and weights as copies in the engine's memory, which live as long as the arguments
// and the operation.
DispatchArgs for_engine(const Communicator& comm, DispatchArgs args);

// A copy that the host can read and write.
TensorView on_host(const Communicator& comm, const TensorView& view);
DispatchResult on_host(const Communicator& comm, DispatchResult result);
CombineResult on_host(const Communicator& comm, CombineResult result);

// Brings what on_host(view) has become back into the memory of `view`.
void put_back(const Communicator& comm, const TensorView& host, const TensorView& view);

// R numbers that an engine adds to, zero at first, and the host may read.
TensorView counters(const Communicator& comm);

}  // namespace sluice::cli
