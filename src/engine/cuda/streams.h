// The streams of lanes. They are made once and used again: the driver deals streams to its few hardware queues,
// so a process that made new ones for every communicator would sooner or later put one lane's wait in front of
// another lane's signal.
#pragma once

#include <cuda_runtime_api.h>

namespace sluice::cuda {

// An idle stream of the highest priority on the current device, which the legacy stream does not wait for.
// Throws SystemError.
cudaStream_t take_stream(int device, int rank);
// `stream` has drained.
void give_stream(int device, cudaStream_t stream);

}  // namespace sluice::cuda
