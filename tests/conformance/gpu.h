// What tests of the CUDA engine need of the GPU itself.
#pragma once

#if defined(SLUICE_CUDA)

#include <cuda_runtime_api.h>

#include <mutex>
#include <sluice/sluice.h>

#include "cli/cuda_error.h"

namespace conformance {

using sluice::cli::expect;

// Tests are no CUDA sources.
inline const void* kernel_of(const char* text, const char* name) {
  cudaLibrary_t library{};
  cudaKernel_t kernel{};
  expect(cudaLibraryLoadData(&library, text, nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData");
  expect(cudaLibraryGetKernel(&kernel, library, name), "cudaLibraryGetKernel");
  return reinterpret_cast<const void*>(kernel);
}

inline const void* empty_kernel() {
  static const void* const kernel =
      kernel_of(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry empty() { ret; }\n", "empty");
  return kernel;
}

class CallersStream {
 public:
  // A kernel runs in it before anybody waits there: docs/semantics.md, on GPUs.
  CallersStream() {
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    expect(cudaLaunchKernel(empty_kernel(), dim3(1), dim3(1), nullptr, 0, stream_), "cudaLaunchKernel");
    wait();
  }
  ~CallersStream() { cudaStreamDestroy(stream_); }
  CallersStream(const CallersStream&) = delete;
  CallersStream& operator=(const CallersStream&) = delete;

  cudaStream_t get() const { return stream_; }
  sluice::Stream handle() const { return {stream_}; }
  void wait() const { expect(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  bool busy() const { return cudaStreamQuery(stream_) == cudaErrorNotReady; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace conformance

#endif
