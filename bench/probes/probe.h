// What every probe needs: checked calls, driver functions without linking the driver, times.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace probe {

// A driver function by its name, or null when this driver does not have it.
template <class Function>
Function* find_driver(const char* name, unsigned version = 12000) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const auto error = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Function*>(found)
                                                                       : nullptr;
}

template <class Function>
Function* need_driver(const char* name, unsigned version = 12000) {
  auto* const found = find_driver<Function>(name, version);
  if (!found) {
    std::printf("FAILED: this driver has no %s\n", name);
    std::exit(1);
  }
  return found;
}

inline std::string name_of(cudaError_t error) { return cudaGetErrorName(error); }
inline std::string name_of(CUresult error) {
  const char* name = nullptr;
  if (auto* const ask = find_driver<decltype(cuGetErrorName)>("cuGetErrorName")) ask(error, &name);
  return name ? name : "CUresult " + std::to_string(static_cast<int>(error));
}

template <class Error>
void check(Error error, const char* call, const char* file, int line) {
  if (static_cast<int>(error) == 0) return;
  std::printf("FAILED: %s:%d: %s: %s\n", file, line, call, name_of(error).c_str());
  std::fflush(stdout);
  std::exit(1);
}
#define CHECK(call) probe::check((call), #call, __FILE__, __LINE__)

inline double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Spread {
  double p10, p50, p90;
};

inline Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    return values[static_cast<std::size_t>(part * (values.size() - 1) + 0.5)];
  };
  return {at(0.1), at(0.5), at(0.9)};
}

// Elapsed device time between two points of a stream.
class Timer {
 public:
  Timer() {
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start(cudaStream_t stream) { CHECK(cudaEventRecord(begin_, stream)); }
  void stop(cudaStream_t stream) { CHECK(cudaEventRecord(end_, stream)); }
  double us() {
    float ms = 0;
    CHECK(cudaEventSynchronize(end_));
    CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e3;
  }

 private:
  cudaEvent_t begin_{}, end_{};
};

inline cudaStream_t new_stream() {
  cudaStream_t stream{};
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// Zeroed memory of the host that kernels, stream waits and the host all reach.
template <class T>
T* pinned(std::size_t count) {
  void* memory = nullptr;
  CHECK(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable));
  std::fill_n(static_cast<char*>(memory), count * sizeof(T), 0);
  return static_cast<T*>(memory);
}

// A stream wait until a 64-bit word equals `value`.
class WaitWord {
 public:
  void operator()(cudaStream_t stream, const volatile std::uint64_t* word, std::uint64_t value) const {
    CUstreamBatchMemOpParams wait = entry(word, value);
    CHECK(batch_(stream, 1, &wait, 0));
  }
  void operator()(cudaStream_t stream, std::vector<CUstreamBatchMemOpParams>& waits) const {
    CHECK(batch_(stream, static_cast<unsigned>(waits.size()), waits.data(), 0));
  }
  static CUstreamBatchMemOpParams entry(const volatile std::uint64_t* word, std::uint64_t value) {
    CUstreamBatchMemOpParams wait{};
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    wait.waitValue.address = reinterpret_cast<CUdeviceptr>(word);
    wait.waitValue.value64 = value;
    wait.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    return wait;
  }

 private:
  decltype(cuStreamBatchMemOp)* batch_ = need_driver<decltype(cuStreamBatchMemOp)>("cuStreamBatchMemOp");
};

// What `queue` puts into the stream, as a graph.
template <class Queue>
cudaGraphExec_t capture(cudaStream_t stream, Queue queue) {
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  queue();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphDestroy(graph));
  return executable;
}

inline void print_device(int device = 0) {
  cudaDeviceProp properties{};
  int driver = 0, runtime = 0;
  CHECK(cudaGetDeviceProperties(&properties, device));
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  std::printf("%s, %d SMs, driver CUDA %d.%d, runtime %d.%d\n", properties.name,
              properties.multiProcessorCount, driver / 1000, driver % 1000 / 10, runtime / 1000,
              runtime % 1000 / 10);
}

// With a hardware queue for every stream, and no kernel that is loaded behind a wait. Before anything of CUDA.
inline void begin_with_queues() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  CHECK(cudaSetDevice(0));
  print_device();
}

}  // namespace probe
