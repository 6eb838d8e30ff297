#include "cli/bench_copy_gpu.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(SLUICE_CUDA)
#include <cuda_runtime.h>

#include "cli/cuda_error.h"
#endif

namespace sluice::cli {

#if defined(SLUICE_CUDA)

namespace {

// What a rank tells the others of its window.
struct Offer {
  void* address = nullptr;
  int gpu = 0;
  cudaIpcMemHandle_t handle{};
};

class GpuCopy final : public GpuYardstick {
 public:
  GpuCopy(const Group& group, const GpuCopyShape& shape) : group_(group), shape_(shape) {
    // Like the engine's streams it goes before others: beside a GEMM that counts.
    int least = 0, greatest = 0;
    expect(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    expect(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
    args_.rank = group.rank();
    args_.ranks = group.size();
    args_.combine = shape.combine;
    args_.row_bytes = static_cast<std::int64_t>(shape.row_bytes);
    args_.rows = shape.rows;
    args_.tokens = shape.tokens;
    cut_slots(args_);
    const std::size_t tokens_bytes = static_cast<std::size_t>(shape.tokens) * shape.row_bytes;
    window_ = allocate(copy_window_bytes(shape.combine, shape.rows, shape.row_bytes, args_.ranks));
    tokens_ = allocate(tokens_bytes);
    args_.own = args_.home = tokens_;
    meet();
  }

  ~GpuCopy() override {
    for (void* window : mapped_) cudaIpcCloseMemHandle(window);
    try {
      group_.barrier();  // no peer has this window mapped any more
    } catch (const std::exception&) {
      // A peer is gone: it maps nothing.
    }
    cudaFree(window_);
    cudaFree(tokens_);
    cudaStreamDestroy(stream_);
  }

  std::vector<CopyForm> forms() const override { return {CopyForm::bulk}; }
  void prepare(CopyForm) override {}
  void run(const std::function<void()>& begun) override {
    queue({stream_});
    begun();
    expect(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  void queue(Stream stream) override { launch_gpu_copy(args_, shape_.blocks, stream.handle); }

 private:
  std::byte* allocate(std::size_t bytes) {
    void* data = nullptr;
    expect(cudaMalloc(&data, std::max<std::size_t>(bytes, 16)), "cudaMalloc");
    expect(cudaMemsetAsync(data, 1, bytes, stream_), "cudaMemsetAsync");
    expect(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return static_cast<std::byte*>(data);
  }

  void meet() {
    Offer mine{window_, 0, {}};
    expect(cudaGetDevice(&mine.gpu), "cudaGetDevice");
    if (!shape_.one_process) expect(cudaIpcGetMemHandle(&mine.handle, window_), "cudaIpcGetMemHandle");
    const auto offers = group_.all_gather(std::as_bytes(std::span(&mine, 1)));
    for (int r = 0; r < args_.ranks; ++r) {
      Offer offer;
      std::memcpy(&offer, offers[static_cast<std::size_t>(r)].data(), sizeof offer);
      args_.windows[r] = r == args_.rank ? window_ : reach(offer, mine.gpu);
    }
  }

  std::byte* reach(const Offer& offer, int gpu) {
    if (!shape_.one_process) {
      void* data = nullptr;
      expect(cudaIpcOpenMemHandle(&data, offer.handle, cudaIpcMemLazyEnablePeerAccess),
             "cudaIpcOpenMemHandle");
      mapped_.push_back(data);
      return static_cast<std::byte*>(data);
    }
    if (offer.gpu != gpu) {
      const cudaError_t error = cudaDeviceEnablePeerAccess(offer.gpu, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled)
        static_cast<void>(cudaGetLastError());  // it would stick
      else
        expect(error, "cudaDeviceEnablePeerAccess");
    }
    return static_cast<std::byte*>(offer.address);
  }

  Group group_;
  GpuCopyShape shape_;
  GpuCopyArgs args_;
  cudaStream_t stream_ = nullptr;
  std::byte* window_ = nullptr;
  std::byte* tokens_ = nullptr;
  std::vector<void*> mapped_;
};

}  // namespace

std::unique_ptr<GpuYardstick> make_gpu_yardstick(const Group& group, const GpuCopyShape& shape) {
  return std::make_unique<GpuCopy>(group, shape);
}

#else

std::unique_ptr<GpuYardstick> make_gpu_yardstick(const Group&, const GpuCopyShape&) {
  throw std::runtime_error("this build has no CUDA, and so no yardstick for a GPU");
}

#endif

}  // namespace sluice::cli
