#include "engine/cuda/streams.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/cuda/driver.h"
#include "engine/cuda/launch.h"

namespace sluice::cuda {

namespace {

struct Pool {
  std::mutex mutex;
  std::map<std::pair<int, StreamUse>, std::vector<cudaStream_t>> free;  // by device
};

// Never destroyed: communicators may end while the process does.
Pool& pool() {
  static Pool& once = *new Pool;
  return once;
}

// Threads that launch at once into streams that were never used may be dealt the same queue, and then one's wait
// stands in front of the other's kernels (bench/probes/first_launch). So the first launch is made here, by one
// thread at a time, and has ended before anything waits in the stream.
cudaStream_t make_stream(int rank) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", rank);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "cudaStreamCreate", rank);
  check(launch_nothing(stream), "the first launch into a stream", rank);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", rank);
  return stream;
}

// Those that will wait are all made in one go: streams in a row get queues in a row, whatever else the process
// makes later.
cudaStream_t take_stream(int device, int rank, StreamUse use) {
  const std::lock_guard lock(pool().mutex);
  const auto known = pool().free.find({device, use});
  const bool first = known == pool().free.end();
  std::vector<cudaStream_t>& free = pool().free[{device, use}];
  if (free.empty()) {
    const CurrentDevice current(device);
    const int count = first && use == StreamUse::waits ? std::max(1, most_waiting_lanes()) : 1;
    for (int i = 0; i < count; ++i) free.insert(free.begin(), make_stream(rank));
  }
  const cudaStream_t stream = free.back();
  free.pop_back();
  return stream;
}

}  // namespace

int hardware_queues() {
  const char* const text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const int queues = text ? std::atoi(text) : 8;
  return queues < 1 ? 8 : std::min(queues, 32);
}

int most_waiting_lanes() { return (hardware_queues() - 4) / 2; }

std::mutex& queueing(int device) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, std::mutex>;  // never destroyed, as the pool
  const std::lock_guard lock(mutex);
  return all[device];
}

namespace {
// Streams that are kept occupy queues: with those that wait, no more than leave four for others.
std::size_t most_idle_workers() {
  return static_cast<std::size_t>(std::max(1, hardware_queues() - std::max(1, most_waiting_lanes()) - 4) / 2);
}
}  // namespace

PooledStream::PooledStream(int device, int rank, StreamUse use)
    : device_(device), use_(use), stream_(take_stream(device, rank, use)) {}

PooledStream::~PooledStream() {
  const std::lock_guard lock(pool().mutex);
  std::vector<cudaStream_t>& free = pool().free[{device_, use_}];
  if (use_ == StreamUse::works && free.size() >= most_idle_workers()) {
    const CurrentDevice current(device_);
    cudaStreamDestroy(stream_);
    return;
  }
  free.push_back(stream_);
}

}  // namespace sluice::cuda
