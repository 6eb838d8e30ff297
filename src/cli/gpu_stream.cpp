#include "cli/gpu_stream.h"

#include <stdexcept>

#if defined(SLUICE_CUDA)
#include <cuda_runtime.h>

#include <atomic>

#include "cli/caller_memory.h"
#include "cli/cuda_error.h"
#endif

namespace sluice::cli {

#if defined(SLUICE_CUDA)

namespace {

constexpr std::size_t sweep_bytes = 128 << 20;  // more than twice the L2 of any GPU that is out

// Memory of the process's slabs: cudaFree waits for streams that wait for a peer.
class Taken {
 public:
  Taken(MemoryKind kind, std::size_t bytes) : kind_(kind), bytes_(bytes), data_(take(kind, bytes)) {}
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  ~Taken() { give(kind_, data_, bytes_); }
  unsigned* words() const { return static_cast<unsigned*>(data_); }

 private:
  MemoryKind kind_;
  std::size_t bytes_;
  void* data_;
};

class CudaStream final : public GpuStream {
 public:
  CudaStream() {
    int least = 0, greatest = 0;
    expect(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    expect(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
    expect(cudaEventCreate(&began_), "cudaEventCreate");
    expect(cudaEventCreate(&ended_), "cudaEventCreate");
    // Both kernels are loaded before any stream waits for a peer: a first launch would have to wait for that.
    open_gate();
    hold();
    wait();
  }
  ~CudaStream() override {
    open_gate();
    cudaStreamSynchronize(stream_);
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    cudaEventDestroy(began_);
    cudaEventDestroy(ended_);
    cudaStreamDestroy(stream_);
  }

  Stream handle() const override { return {stream_}; }

  double time(const std::function<void()>& queue, const std::function<void()>& meet) override {
    std::atomic_ref(*gate_.words()).store(0);
    hold();
    expect(cudaEventRecord(began_, stream_), "cudaEventRecord");
    queue();
    expect(cudaEventRecord(ended_, stream_), "cudaEventRecord");
    meet();
    open_gate();
    wait();
    float ms = 0;
    expect(cudaEventElapsedTime(&ms, began_, ended_), "cudaEventElapsedTime");
    return 1000.0 * ms;
  }

  void capture(const std::function<void()>& queue) override {
    cudaGraph_t graph = nullptr;
    expect(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    queue();
    expect(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    graph_ = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    expect(error, "cudaGraphInstantiate");
    expect(cudaGraphUpload(graph_, stream_), "cudaGraphUpload");
  }
  void replay() override { expect(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }
  void wait() override { expect(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  void hold() {
    launch_gpu_sweep(swept_.words(), sweep_bytes / sizeof(unsigned), stream_);
    launch_gpu_gate(gate_.words(), stream_);
  }
  void open_gate() { std::atomic_ref(*gate_.words()).store(1); }

  Taken swept_{MemoryKind::device, sweep_bytes};
  Taken gate_{MemoryKind::pinned, 64};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t began_ = nullptr, ended_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

std::unique_ptr<GpuStream> make_gpu_stream() { return std::make_unique<CudaStream>(); }

#else

std::unique_ptr<GpuStream> make_gpu_stream() { throw std::runtime_error("this build has no CUDA, and so no stream of a GPU"); }

#endif

}  // namespace sluice::cli
