// A caller's stream on the current GPU, as the bench uses it: what is queued on it can be timed by the GPU alone,
// or captured and replayed as one graph.
#pragma once

#include <sluice/event.h>

#include <functional>
#include <memory>

namespace sluice::cli {

class GpuStream {
 public:
  virtual ~GpuStream() = default;

  // For the `stream` of a call that runs in it, and for kernels.
  virtual Stream handle() const = 0;

  // Microseconds of the GPU for what `queue` queues here: all of it lies in the stream, and the L2 holds none of its
  // bytes, when the clock starts. `meet` is called in between, so that all ranks start together. The host's own
  // time is not in it.
  virtual double time(const std::function<void()>& queue, const std::function<void()>& meet) = 0;

  // What `queue` queues here becomes a graph, which takes the place of an earlier one.
  virtual void capture(const std::function<void()>& queue) = 0;
  virtual void replay() = 0;
  // Until all that lies here has run.
  virtual void wait() = 0;
};

// Throws std::runtime_error where this build has no CUDA, and so do all calls when CUDA says no.
std::unique_ptr<GpuStream> make_gpu_stream();

// For GpuStream, of bench_copy.cu. Reads `words` words, into which nothing is written.
void launch_gpu_sweep(const unsigned* words, std::size_t count, void* stream);
// Until the word in pinned memory is not 0.
void launch_gpu_gate(const unsigned* opened, void* stream);

}  // namespace sluice::cli
