// The streams of lanes. They are made once and used again: the driver deals streams to its few hardware queues, so a
// process that made new ones for every communicator would sooner or later put one lane's wait in front of another
// lane's signal.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

namespace sluice::cuda {

// CUDA_DEVICE_MAX_CONNECTIONS as CUDA reads it.
int hardware_queues();
// So many lanes of a process may wait in streams; more would hold up each other and the caller's streams
// (bench/probes/waiting_streams).
int most_waiting_lanes();

// Held while an operation, or a wait, is queued: of threads that queue at the same time on one GPU, some are dealt
// the hardware queue in which another's stream waits (docs/architecture.md), and their kernels stand behind that.
std::mutex& queueing(int device);

// What is put into a stream: waits for peers, or only work.
enum class StreamUse { waits, works };

// An idle stream of the highest priority, which the legacy stream does not wait for. It has drained when this goes.
class PooledStream {
 public:
  // Throws SystemError.
  PooledStream(int device, int rank, StreamUse use);
  ~PooledStream();
  PooledStream(const PooledStream&) = delete;
  PooledStream& operator=(const PooledStream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  int device_;
  StreamUse use_;
  cudaStream_t stream_;
};

}  // namespace sluice::cuda
