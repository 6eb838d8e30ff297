#include "engine/cuda/streams.h"

#include <map>
#include <mutex>
#include <vector>

#include "engine/cuda/driver.h"
#include "engine/cuda/launch.h"

namespace sluice::cuda {

namespace {

struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<cudaStream_t>> free;  // by device
};

// Never destroyed: communicators may end while the process does.
Pool& pool() {
  static Pool& once = *new Pool;
  return once;
}

cudaStream_t take_stream(int device, int rank) {
  std::unique_lock lock(pool().mutex);
  std::vector<cudaStream_t>& free = pool().free[device];
  if (!free.empty()) {
    const cudaStream_t stream = free.back();
    free.pop_back();
    return stream;
  }
  const CurrentDevice current(device);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", rank);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "cudaStreamCreate", rank);
  // Threads that launch at once into streams that were never used may be dealt the same queue, and then one's
  // wait stands in front of the other's kernels (bench/probes/first_launch). So the first launch is made here,
  // by one thread at a time, and has ended before anything waits in the stream.
  check(launch_nothing(stream), "the first launch into a stream", rank);
  lock.unlock();
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", rank);
  return stream;
}

}  // namespace

PooledStream::PooledStream(int device, int rank) : device_(device), stream_(take_stream(device, rank)) {}

PooledStream::~PooledStream() {
  const std::lock_guard lock(pool().mutex);
  pool().free[device_].push_back(stream_);
}

}  // namespace sluice::cuda
