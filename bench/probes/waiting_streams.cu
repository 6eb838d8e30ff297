// Who is held up by 1 to 4 waiting streams while 12 or 16 others are busy: kernels, copies on the device,
// waits for events, graphs with branches? By CUDA_DEVICE_MAX_CONNECTIONS, with the waits in streams, in
// graphs, and in streams of green contexts.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "probe.h"

namespace {

using Word = std::uint64_t;

constexpr int most_waiting = 4, most_busy = 16, rounds = 6, work_us = 60, words_apart = 8;
constexpr std::size_t copy_bytes = 4 << 20;

__global__ void work(int us) {
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now < begin + us * 1000ull);
}

__global__ void note(volatile Word* word) { *word = 1; }

void launch_work(cudaStream_t stream) {
  work<<<1, 32, 0, stream>>>(work_us);
  CHECK(cudaGetLastError());
}

// Opens all gates by plain stores when the host has been inside one call for too long.
class Gates {
 public:
  Gates() : words_(probe::pinned<Word>(most_waiting * words_apart)), watchdog_([this] { watch(); }) {}
  ~Gates() {
    leaving_ = true;
    watchdog_.join();
  }
  Gates(const Gates&) = delete;
  Gates& operator=(const Gates&) = delete;

  volatile Word* at(int index) const { return words_ + index * words_apart; }
  void close() {
    forced_ = false;
    for (int i = 0; i < most_waiting; ++i) *at(i) = 0;
    closed_since_us_ = probe::now_us();
  }
  // False when the watchdog was faster.
  bool open() {
    closed_since_us_ = 0;
    open_all();
    return !forced_;
  }

 private:
  void open_all() {
    for (int i = 0; i < most_waiting; ++i) *at(i) = 1;
  }
  void watch() {
    while (!leaving_) {
      usleep(20000);
      const double since = closed_since_us_;
      if (since != 0 && probe::now_us() - since > 3e5) forced_ = true, open_all();
    }
  }
  volatile Word* words_;
  std::atomic<double> closed_since_us_{0};
  std::atomic<bool> forced_{false}, leaving_{false};
  std::thread watchdog_;
};

// The streams that keep the device busy, and what each of them can be busy with.
class Busy {
 public:
  Busy() {
    for (auto& stream : streams_) stream = probe::new_stream();
    for (auto& event : events_) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaMalloc(&memory_, 2 * copy_bytes));
    for (auto& graph : graphs_) graph = branched_graph(streams_[0]);
  }
  ~Busy() {
    for (auto stream : streams_) cudaStreamDestroy(stream);
    for (auto event : events_) cudaEventDestroy(event);
    for (auto graph : graphs_) cudaGraphExecDestroy(graph);
    cudaFree(memory_);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

  void queue(const std::string& kind, int count) {
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < count; ++i) {
        if (kind == "kernels") launch_work(streams_[i]);
        if (kind == "copies")
          CHECK(cudaMemcpyAsync(memory_, memory_ + copy_bytes, copy_bytes, cudaMemcpyDeviceToDevice,
                                streams_[i]));
        if (kind == "graphs" && round % 3 == 0) CHECK(cudaGraphLaunch(graphs_[i], streams_[i]));
        if (kind != "events") continue;
        CHECK(cudaStreamWaitEvent(streams_[i], events_[(i + 1) % count], 0));
        launch_work(streams_[i]);
        CHECK(cudaEventRecord(events_[i], streams_[i]));
      }
    }
  }
  int unfinished(int count) const {
    int number = 0;
    for (int i = 0; i < count; ++i) {
      const auto state = cudaStreamQuery(streams_[i]);
      if (state != cudaErrorNotReady) CHECK(state);
      number += state == cudaErrorNotReady;
    }
    return number;
  }

 private:
  // One kernel, four beside each other, one.
  static cudaGraphExec_t branched_graph(cudaStream_t stream) {
    const cudaStream_t branches[3] = {probe::new_stream(), probe::new_stream(), probe::new_stream()};
    cudaEvent_t fork{}, join{};
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    const auto graph = probe::capture(stream, [&] {
      launch_work(stream);
      CHECK(cudaEventRecord(fork, stream));
      for (auto branch : branches) {
        CHECK(cudaStreamWaitEvent(branch, fork, 0));
        launch_work(branch);
      }
      launch_work(stream);
      for (auto branch : branches) {
        CHECK(cudaEventRecord(join, branch));
        CHECK(cudaStreamWaitEvent(stream, join, 0));
      }
      launch_work(stream);
    });
    for (auto branch : branches) CHECK(cudaStreamDestroy(branch));
    CHECK(cudaEventDestroy(fork));
    CHECK(cudaEventDestroy(join));
    return graph;
  }

  cudaStream_t streams_[most_busy]{};
  cudaEvent_t events_[most_busy]{};
  cudaGraphExec_t graphs_[most_busy]{};
  char* memory_ = nullptr;
};

// Green contexts with few SMs each: one for all waiting streams, or one for each.
class GreenContexts {
 public:
  ~GreenContexts() {
    for (auto context : contexts_) destroy_(context);
  }
  // Empty when done, else why not.
  std::string create(int count) {
    if (!get_ || !split_ || !describe_ || !create_ || !stream_ || !destroy_)
      return "this driver has no green contexts";
    CUdevResource all{}, group{}, rest{};
    CUdevResourceDesc description{};
    unsigned groups = 1;
    CUresult error = get_(0, &all, CU_DEV_RESOURCE_TYPE_SM);
    if (!error) error = split_(&group, &groups, &all, &rest, 0, 8);
    if (!error) error = describe_(&description, &group, 1);
    for (int i = 0; i < count && !error; ++i) {
      CUgreenCtx context{};
      error = create_(&context, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
      if (!error) contexts_.push_back(context);
    }
    return error ? probe::name_of(error) : "";
  }
  cudaStream_t new_stream(int index) const {
    CUstream stream{};
    CHECK(stream_(&stream, contexts_[index % contexts_.size()], CU_STREAM_NON_BLOCKING, 0));
    return stream;
  }

 private:
  template <class Function>
  static Function* find(const char* name) {
    return probe::find_driver<Function>(name, 12050);
  }
  decltype(cuDeviceGetDevResource)* get_ = find<decltype(cuDeviceGetDevResource)>("cuDeviceGetDevResource");
  decltype(cuDevSmResourceSplitByCount)* split_ =
      find<decltype(cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount");
  decltype(cuDevResourceGenerateDesc)* describe_ =
      find<decltype(cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc");
  decltype(cuGreenCtxCreate)* create_ = find<decltype(cuGreenCtxCreate)>("cuGreenCtxCreate");
  decltype(cuGreenCtxStreamCreate)* stream_ =
      find<decltype(cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate");
  decltype(cuGreenCtxDestroy)* destroy_ = find<decltype(cuGreenCtxDestroy)>("cuGreenCtxDestroy");
  std::vector<CUgreenCtx> contexts_;
};

// As a lane: kernel, wait, kernel; queued call by call or as a graph.
class Waiting {
 public:
  Waiting(const Gates& gates, bool graphs, const std::function<cudaStream_t(int)>& new_stream)
      : gates_(gates) {
    for (int i = 0; i < most_waiting; ++i) {
      streams_[i] = new_stream(i);
      if (graphs) graphs_[i] = probe::capture(streams_[i], [&] { queue_calls(i); });
    }
  }
  ~Waiting() {
    for (int i = 0; i < most_waiting; ++i) {
      cudaStreamDestroy(streams_[i]);
      if (graphs_[i]) cudaGraphExecDestroy(graphs_[i]);
    }
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  void queue(int count) {
    for (int i = 0; i < count; ++i) {
      if (graphs_[i])
        CHECK(cudaGraphLaunch(graphs_[i], streams_[i]));
      else
        queue_calls(i);
    }
  }
  void finish() {
    for (auto stream : streams_) CHECK(cudaStreamSynchronize(stream));
  }

 private:
  void queue_calls(int i) {
    launch_work(streams_[i]);
    wait_(streams_[i], gates_.at(i), 1);
    launch_work(streams_[i]);
  }
  const Gates& gates_;
  probe::WaitWord wait_;
  cudaStream_t streams_[most_waiting]{};
  cudaGraphExec_t graphs_[most_waiting]{};
};

struct Outcome {
  double us;
  int held;
  bool host_blocked;
};

// Half of the work is queued before the waits and half after. Held: not finished after `limit_us`.
Outcome measure(Gates& gates, Waiting& waiting, Busy& busy, const char* kind, int waiters, int count,
                double limit_us) {
  gates.close();
  const double begin = probe::now_us();
  busy.queue(kind, count);
  waiting.queue(waiters);
  busy.queue(kind, count);
  int held = busy.unfinished(count);
  while (held > 0 && probe::now_us() - begin < limit_us) held = busy.unfinished(count);
  const double us = probe::now_us() - begin;
  const bool free = gates.open();
  waiting.finish();
  CHECK(cudaDeviceSynchronize());
  return {us, held, !free};
}

// One line for each number of waiting streams; a cell says how many are held, or how much longer it took.
void print_lines(Gates& gates, Waiting& waiting, Busy& busy, const char* connections, const char* form) {
  std::vector<double> alone;
  for (int waiters = 0; waiters <= most_waiting; ++waiters) {
    if (waiters > 0) std::printf("%-7s %-28s %d", connections, form, waiters);
    std::size_t column = 0;
    for (const char* kind : {"kernels", "copies", "events", "graphs"}) {
      for (int count : {12, most_busy}) {
        if (waiters == 0) {
          measure(gates, waiting, busy, kind, 0, count, 1e5);
          alone.push_back(measure(gates, waiting, busy, kind, 0, count, 1e5).us);
          continue;
        }
        const double usual = alone[column++];
        const auto outcome = measure(gates, waiting, busy, kind, waiters, count, std::max(3 * usual, 8e3));
        std::printf(count == 12 ? " |" : "");
        if (outcome.host_blocked)
          std::printf(" %9s", "HOST");
        else if (outcome.held > 0)
          std::printf("  held %2d", outcome.held);
        else
          std::printf("  x %5.2f", outcome.us / usual);
      }
    }
    if (waiters > 0) std::printf("\n");
    std::fflush(stdout);
  }
}

// Does a branch of a graph go on while the branch beside it waits?
void print_branch_beside(Gates& gates, const char* connections) {
  const auto stream = probe::new_stream(), branch = probe::new_stream();
  auto* const reached = probe::pinned<Word>(1);
  cudaEvent_t fork{}, join{};
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  const probe::WaitWord wait;
  const auto graph = probe::capture(stream, [&] {
    launch_work(stream);
    CHECK(cudaEventRecord(fork, stream));
    CHECK(cudaStreamWaitEvent(branch, fork, 0));
    wait(stream, gates.at(0), 1);
    for (int i = 0; i < 4; ++i) launch_work(branch);
    note<<<1, 1, 0, branch>>>(reached);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(join, branch));
    CHECK(cudaStreamWaitEvent(stream, join, 0));
  });
  int passed = 0;
  const int tries = 5;
  for (int i = 0; i < tries; ++i) {
    gates.close();
    *static_cast<volatile Word*>(reached) = 0;
    CHECK(cudaGraphLaunch(graph, stream));
    usleep(10000);
    passed += *static_cast<volatile Word*>(reached) == 1;
    gates.open();
    CHECK(cudaStreamSynchronize(stream));
  }
  std::printf("%-7s graph, branch beside a wait: finished during the wait in %d of %d launches\n",
              connections, passed, tries);
  CHECK(cudaGraphExecDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaStreamDestroy(branch));
}

void run_here(const char* connections) {
  CHECK(cudaSetDevice(0));
  CHECK(cudaFree(nullptr));
  Gates gates;
  const auto ordinary = [](int) { return probe::new_stream(); };
  for (const bool graphs : {false, true}) {
    for (const bool first : {true, false}) {
      std::unique_ptr<Busy> busy;
      if (!first) busy = std::make_unique<Busy>();
      Waiting waiting(gates, graphs, ordinary);
      if (first) busy = std::make_unique<Busy>();
      const std::string form =
          std::string(graphs ? "graphs" : "streams") + (first ? ", made first" : ", made last");
      print_lines(gates, waiting, *busy, connections, form.c_str());
    }
  }
  print_branch_beside(gates, connections);
  for (const int contexts : {1, most_waiting}) {
    GreenContexts green;
    const std::string form = contexts == 1 ? "streams, 1 green context" : "streams, a green context each";
    const auto why = green.create(contexts);
    if (!why.empty()) {
      std::printf("%-7s %s: skipped, %s\n", connections, form.c_str(), why.c_str());
      continue;
    }
    Busy busy;
    Waiting waiting(gates, false, [&](int i) { return green.new_stream(i); });
    print_lines(gates, waiting, busy, connections, form.c_str());
  }
}

// The variable is read when CUDA starts, so each number gets a process of its own.
bool run_in_child(const char* program, const char* connections) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::strcmp(connections, "default") == 0)
      unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    else
      setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    alarm(30);
    execl("/proc/self/exe", program, connections, static_cast<char*>(nullptr));
    std::_Exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) std::printf("%-7s FAILED: ended by signal %d\n", connections, WTERMSIG(status));
  return status == 0;
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1) {
    if (std::strcmp(argv[1], "device") == 0)
      probe::print_device();
    else
      run_here(argv[1]);
    return 0;
  }
  if (!run_in_child(argv[0], "device")) return 1;
  std::printf(
      "of 12 and of 16 busy streams: how many are held until the waits end, or else the time x that without\n"
      "waits; HOST: a call of the host was held, and the waits ended after 0.3 s\n");
  std::printf("%-7s %-28s %s | kernels 12, 16 | copies 12, 16 | events 12, 16 | graphs 12, 16\n", "queues",
              "waits in", "n");
  bool done = true;
  for (const char* connections : {"1", "2", "8", "32"}) done &= run_in_child(argv[0], connections);
  return done ? 0 : 1;
}
