// What does a sequence of 1 to 6 tiny kernels cost, on the host and on the device: plain, with programmatic
// dependent launch, with satisfied stream waits between them, and as a graph? And each host call alone?
#include <unistd.h>

#include <functional>

#include "probe.h"

namespace {

using probe::WaitWord;

template <int bytes>
struct Args {
  int* counter;
  char rest[bytes - sizeof(int*)];
};

// Lets its successor start at once, then waits for its predecessor; both do nothing without the attribute.
template <int bytes>
__global__ void tiny(const __grid_constant__ Args<bytes> args) {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  if (threadIdx.x == 0) *args.counter += 1;
}

template <int bytes>
void launch(cudaStream_t stream, int* counter, bool dependent) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = 1;
  config.blockDim = 32;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  Args<bytes> args{};
  args.counter = counter;
  void* arguments[] = {&args};
  CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(tiny<bytes>), arguments));
}

struct Mode {
  const char* name;
  bool dependent, waits, graph;
};

const Mode modes[] = {
    {"plain", false, false, false},          {"dependent launch", true, false, false},
    {"waits between", false, true, false},   {"dependent, waits", true, true, false},
    {"graph", false, false, true},           {"graph, waits", false, true, true},
    {"graph, dependent", true, false, true},
};

struct Place {
  cudaStream_t stream;
  volatile std::uint64_t *gate, *satisfied;
  int* counter;
};

void queue(const Place& at, const WaitWord& wait, const Mode& mode, int kernels) {
  for (int i = 0; i < kernels; ++i) {
    if (mode.waits && i > 0) wait(at.stream, at.satisfied, 1);
    launch<512>(at.stream, at.counter, mode.dependent);
  }
}

struct Cost {
  double host_us, device_us;
};

// The stream is held while the host queues, so neither side waits for the other.
Cost cost_of(const Place& at, const WaitWord& wait, const Mode& mode, int kernels) {
  cudaGraphExec_t graph{};
  if (mode.graph) graph = probe::capture(at.stream, [&] { queue(at, wait, mode, kernels); });
  probe::Timer timer;
  std::vector<double> host, device;
  for (int repetition = 0; repetition < 60; ++repetition) {
    *at.gate = 0;
    wait(at.stream, at.gate, 1);
    timer.start(at.stream);
    const double begin = probe::now_us();
    if (graph)
      CHECK(cudaGraphLaunch(graph, at.stream));
    else
      queue(at, wait, mode, kernels);
    host.push_back(probe::now_us() - begin);
    timer.stop(at.stream);
    *at.gate = 1;
    device.push_back(timer.us());
  }
  CHECK(cudaStreamSynchronize(at.stream));
  if (graph) CHECK(cudaGraphExecDestroy(graph));
  return {probe::spread(host).p50, probe::spread(device).p50};
}

void print_sequences(const Place& at, const WaitWord& wait) {
  const Cost nothing = cost_of(at, wait, modes[0], 0);
  std::printf("two events with nothing between: %.2f us, contained in the device times\n", nothing.device_us);
  std::printf("host us / device us, p50 of 60; kernels of one warp with 512 B of arguments\n%-18s",
              "kernels");
  for (int kernels = 1; kernels <= 6; ++kernels) std::printf(" %15d", kernels);
  std::printf("   device us per further kernel\n");
  for (const auto& mode : modes) {
    std::printf("%-18s", mode.name);
    double first = 0, last = 0;
    for (int kernels = 1; kernels <= 6; ++kernels) {
      const Cost cost = cost_of(at, wait, mode, kernels);
      if (kernels == 1) first = cost.device_us;
      last = cost.device_us;
      std::printf("   %5.2f / %5.2f", cost.host_us, cost.device_us);
    }
    std::printf("   %.2f\n", (last - first) / 5);
    std::fflush(stdout);
  }
}

// Host time of one call, the stream being held; `calls` at a time.
void print_call(const Place& at, const WaitWord& wait, const char* name, int calls,
                const std::function<void()>& call) {
  std::vector<double> times;
  for (int repetition = 0; repetition < 12; ++repetition) {
    *at.gate = 0;
    wait(at.stream, at.gate, 1);
    const double begin = probe::now_us();
    for (int i = 0; i < calls; ++i) call();
    const double us = (probe::now_us() - begin) / calls;
    *at.gate = 1;
    CHECK(cudaStreamSynchronize(at.stream));
    if (repetition > 0) times.push_back(us);
  }
  const auto us = probe::spread(times);
  std::printf("  %-58s %6.2f us (%.2f to %.2f)\n", name, us.p50, us.p10, us.p90);
  std::fflush(stdout);
}

// As a dispatch: plan and publish, OPEN, agree and move, CLOSE, finish.
void queue_operation(const Place& at, const WaitWord& wait) {
  for (int kernels : {2, 2, 1}) {
    for (int i = 0; i < kernels; ++i) launch<512>(at.stream, at.counter, false);
    if (kernels == 2) wait(at.stream, at.satisfied, 1);
  }
}

void print_calls(const Place& at, const WaitWord& wait) {
  cudaEvent_t event{}, done{};
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  const auto other = probe::new_stream();
  auto* const copied = probe::pinned<int>(1);
  std::vector<CUstreamBatchMemOpParams> eight(8, WaitWord::entry(at.satisfied, 1));
  const auto graph = probe::capture(at.stream, [&] { queue_operation(at, wait); });
  const auto print = [&](const char* name, int calls, const std::function<void()>& call) {
    print_call(at, wait, name, calls, call);
  };

  std::printf("host time of one call, p50 of 11 batches:\n");
  print("launch, 16 B of arguments", 100, [&] { launch<16>(at.stream, at.counter, false); });
  print("launch, 512 B", 100, [&] { launch<512>(at.stream, at.counter, false); });
  print("launch, 2 KB", 100, [&] { launch<2048>(at.stream, at.counter, false); });
  print("launch, 512 B, dependent", 100, [&] { launch<512>(at.stream, at.counter, true); });
  print("cuStreamBatchMemOp, 1 wait", 100, [&] { wait(at.stream, at.satisfied, 1); });
  print("cuStreamBatchMemOp, 8 waits", 50, [&] { wait(at.stream, eight); });
  print("cudaEventRecord, no timing", 100, [&] { CHECK(cudaEventRecord(event, at.stream)); });
  print("cudaEventQuery, event done", 100, [&] { CHECK(cudaEventQuery(event)); });
  print("cudaStreamQuery, not ready", 100, [&] {
    const auto state = cudaStreamQuery(at.stream);
    if (state != cudaErrorNotReady) CHECK(state);
  });
  CHECK(cudaEventRecord(done, other));
  CHECK(cudaStreamSynchronize(other));
  print("cudaStreamWaitEvent, event done", 100, [&] { CHECK(cudaStreamWaitEvent(at.stream, done, 0)); });
  print("cudaEventRecord and cudaStreamWaitEvent by the other stream", 50, [&] {
    CHECK(cudaEventRecord(event, at.stream));
    CHECK(cudaStreamWaitEvent(other, event, 0));
  });
  CHECK(cudaStreamSynchronize(other));
  print("cudaMemcpyAsync, 4 B to pinned memory", 50,
        [&] { CHECK(cudaMemcpyAsync(copied, at.counter, sizeof(int), cudaMemcpyDeviceToHost, at.stream)); });
  print("operation of 5 kernels and 2 waits, call by call", 15, [&] { queue_operation(at, wait); });
  print("the same as one cudaGraphLaunch", 15, [&] { CHECK(cudaGraphLaunch(graph, at.stream)); });
  CHECK(cudaGraphExecDestroy(graph));
}

}  // namespace

int main() {
  alarm(60);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  CHECK(cudaSetDevice(0));
  probe::print_device();
  Place at{probe::new_stream(), probe::pinned<std::uint64_t>(1), probe::pinned<std::uint64_t>(1), nullptr};
  CHECK(cudaMalloc(&at.counter, sizeof(int)));
  CHECK(cudaMemset(at.counter, 0, sizeof(int)));
  CHECK(cudaDeviceSynchronize());
  *at.satisfied = 1;
  const WaitWord wait;
  print_calls(at, wait);
  print_sequences(at, wait);
}
