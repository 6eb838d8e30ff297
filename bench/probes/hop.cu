// What does one hop cost when eight byte flags lie in one word of pinned host memory? Kernel stores the flags
// -> stream wait of the 64-bit word -> next kernel; in one process, between two, on two GPUs, as a graph.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "probe.h"

namespace {

constexpr int rounds = 100;  // two hops each; so many fit into a hardware queue while it is held
constexpr std::uint64_t all_set = 0x0101010101010101, first_missing = 0x0101010101010100;

enum class Flags { word, bytes_by_threads, bytes_by_one, bytes_to_eight_words };

const char* name_of(Flags flags) {
  switch (flags) {
    case Flags::word:
      return "one 64-bit store";
    case Flags::bytes_by_threads:
      return "8 bytes by 8 threads";
    case Flags::bytes_by_one:
      return "8 bytes by 1 thread";
    case Flags::bytes_to_eight_words:
      return "1 byte into each of 8 words";
  }
  return "";
}

// Words of one side: the one that it waits for, and seven that nobody reads, a cache line each.
struct alignas(64) Word {
  std::uint64_t value;
};
using Words = Word[8];

struct Lane {
  int device;
  cudaStream_t stream;
  Word *mine, *peer;
};

std::uint64_t unset(Flags flags) { return flags == Flags::bytes_to_eight_words ? first_missing : 0; }

__device__ void store_flag(void* byte) {
  asm volatile("st.release.sys.global.u8 [%0], %1;" ::"l"(byte), "r"(1) : "memory");
}

// As the tail of a kernel: resets what its wait consumed, then signals.
__global__ void hop(Word* mine, Word* peer, Flags flags, std::uint64_t reset) {
  if (threadIdx.x == 0) *reinterpret_cast<volatile std::uint64_t*>(&mine->value) = reset;
  __threadfence_system();
  __syncwarp();
  auto* const bytes = reinterpret_cast<char*>(peer);
  if (flags == Flags::word && threadIdx.x == 0) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(peer), "l"(all_set) : "memory");
  } else if (flags == Flags::bytes_by_threads && threadIdx.x < 8) {
    store_flag(bytes + threadIdx.x);
  } else if (flags == Flags::bytes_by_one && threadIdx.x == 0) {
    for (int i = 0; i < 8; ++i) store_flag(bytes + i);
  } else if (flags == Flags::bytes_to_eight_words && threadIdx.x < 8) {
    store_flag(peer + threadIdx.x);
  }
}

void launch_hop(const Lane& lane, Flags flags) {
  CHECK(cudaSetDevice(lane.device));
  hop<<<1, 32, 0, lane.stream>>>(lane.mine, lane.peer, flags, unset(flags));
  CHECK(cudaGetLastError());
}

void await_and_hop(const probe::WaitWord& wait, const Lane& lane, Flags flags) {
  CHECK(cudaSetDevice(lane.device));
  wait(lane.stream, &lane.mine->value, all_set);
  launch_hop(lane, flags);
}

// The memory lies on the device in one case, hence no plain stores.
void reset_words(const Lane& lane, Flags flags) {
  const std::uint64_t value = unset(flags);
  CHECK(cudaMemcpy(&lane.mine->value, &value, sizeof value, cudaMemcpyDefault));
}

// Everything is queued behind a gate; so the host's pace does not count. Us per hop.
probe::Spread ping_pong(const Lane& a, const Lane& b, Flags flags, volatile std::uint64_t* gate,
                        int steps_per_graph) {
  const probe::WaitWord wait;
  std::vector<double> times;
  cudaGraphExec_t graphs[2] = {};
  const Lane* const lanes[2] = {&b, &a};
  for (int side = 0; side < 2 && steps_per_graph > 0; ++side) {
    CHECK(cudaSetDevice(lanes[side]->device));
    graphs[side] = probe::capture(lanes[side]->stream, [&] {
      for (int i = 0; i < steps_per_graph; ++i) await_and_hop(wait, *lanes[side], flags);
    });
  }
  CHECK(cudaSetDevice(a.device));
  probe::Timer timer;
  for (int repetition = 0; repetition < 6; ++repetition) {
    reset_words(a, flags), reset_words(b, flags);
    *gate = 0;
    CHECK(cudaSetDevice(a.device));
    wait(a.stream, gate, 1);
    timer.start(a.stream);
    launch_hop(a, flags);
    for (int i = 0; i < rounds; i += std::max(steps_per_graph, 1)) {
      for (int side = 0; side < 2; ++side) {
        if (graphs[side])
          CHECK(cudaGraphLaunch(graphs[side], lanes[side]->stream));
        else
          await_and_hop(wait, *lanes[side], flags);
      }
    }
    CHECK(cudaSetDevice(a.device));
    timer.stop(a.stream);
    *gate = 1;
    CHECK(cudaStreamSynchronize(a.stream));
    CHECK(cudaStreamSynchronize(b.stream));
    if (repetition > 0) times.push_back(timer.us() / (2 * rounds));
  }
  for (auto graph : graphs) {
    if (graph) CHECK(cudaGraphExecDestroy(graph));
  }
  return probe::spread(times);
}

void print_line(const char* where, Flags flags, const probe::Spread& us) {
  std::printf("%-44s %-28s %8.2f us (%.2f to %.2f)\n", where, name_of(flags), us.p50, us.p10, us.p90);
  std::fflush(stdout);
}

Lane new_lane(int device, Word* mine, Word* peer) {
  CHECK(cudaSetDevice(device));
  return {device, probe::new_stream(), mine, peer};
}

void one_process() {
  CHECK(cudaSetDevice(0));
  auto* const gate = probe::pinned<std::uint64_t>(1);
  auto* const host = probe::pinned<Words>(2);
  Words* device = nullptr;
  CHECK(cudaMalloc(&device, 2 * sizeof(Words)));
  CHECK(cudaMemset(device, 0, 2 * sizeof(Words)));
  const Lane a = new_lane(0, host[0], host[1]), b = new_lane(0, host[1], host[0]);
  for (const auto flags :
       {Flags::word, Flags::bytes_by_threads, Flags::bytes_by_one, Flags::bytes_to_eight_words}) {
    print_line("one process", flags, ping_pong(a, b, flags, gate, 0));
  }
  for (const auto flags : {Flags::bytes_by_threads, Flags::bytes_to_eight_words}) {
    print_line("one process, graphs of 10 hops", flags, ping_pong(a, b, flags, gate, 10));
    print_line("one process, graphs of 1 hop", flags, ping_pong(a, b, flags, gate, 1));
  }
  const Lane c{0, a.stream, device[0], device[1]}, d{0, b.stream, device[1], device[0]};
  print_line("one process, words in device memory", Flags::bytes_by_threads,
             ping_pong(c, d, Flags::bytes_by_threads, gate, 0));
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  if (devices < 2) return (void)std::printf("one process, two GPUs: skipped, there is one GPU\n");
  const Lane other = new_lane(1, host[1], host[0]);
  print_line("one process, two GPUs", Flags::bytes_by_threads,
             ping_pong(a, other, Flags::bytes_by_threads, gate, 0));
}

// What two processes share. All of it is registered by both.
struct Shared {
  alignas(4096) Words words[2];
  alignas(64) volatile std::uint64_t gate;
  alignas(64) std::atomic<int> arrived;
  alignas(64) double us[8];
};

// Until both processes are here for the n-th time.
void meet(Shared& shared, int nth) {
  ++shared.arrived;
  while (shared.arrived < 2 * nth) usleep(50);
}

void play(Shared& shared, int side, int device, Flags flags) {
  CHECK(cudaSetDevice(device));
  CHECK(cudaHostRegister(&shared, sizeof shared, cudaHostRegisterMapped | cudaHostRegisterPortable));
  Shared* seen = nullptr;
  CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&seen), &shared, 0));
  const probe::WaitWord wait;
  const Lane lane = new_lane(device, seen->words[side], seen->words[1 - side]);
  probe::Timer timer;
  int met = 0;
  for (auto& us : shared.us) {
    shared.words[side][0].value = unset(flags);
    if (side == 0) shared.gate = 0;
    meet(shared, ++met);
    if (side == 0) {
      wait(lane.stream, &seen->gate, 1);
      timer.start(lane.stream);
      launch_hop(lane, flags);
    }
    for (int i = 0; i < rounds; ++i) await_and_hop(wait, lane, flags);
    if (side == 0) timer.stop(lane.stream);
    meet(shared, ++met);
    if (side == 0) shared.gate = 1;
    CHECK(cudaStreamSynchronize(lane.stream));
    if (side == 0) us = timer.us() / (2 * rounds);
    meet(shared, ++met);
  }
  CHECK(cudaHostUnregister(&shared));
}

template <class Body>
pid_t in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::exit(body());
  }
  return child;
}

int exit_code(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

void two_processes(int second_device, Flags flags) {
  const char* const where = second_device ? "two processes, two GPUs" : "two processes, one GPU";
  const int file = memfd_create("hop", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return std::perror("memfd_create");
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return std::perror("mmap");
  auto& shared = *new (memory) Shared{};
  const pid_t children[2] = {in_child([&] { return play(shared, 0, 0, flags), 0; }),
                             in_child([&] { return play(shared, 1, second_device, flags), 0; })};
  const int codes[2] = {exit_code(children[0]), exit_code(children[1])};
  if (codes[0] == 0 && codes[1] == 0) {
    print_line(where, flags, probe::spread({std::begin(shared.us) + 1, std::end(shared.us)}));
  } else {
    std::printf("%-44s FAILED: exit codes %d and %d\n", where, codes[0], codes[1]);
  }
  munmap(memory, sizeof(Shared));
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IONBF, 0);
  alarm(100);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  // Processes are forked before this one touches CUDA.
  const int devices = exit_code(in_child([] {
    int count = 0;
    CHECK(cudaGetDeviceCount(&count));
    probe::print_device();
    return 100 + count;
  }));
  if (devices < 101) return 1;
  for (const auto flags : {Flags::bytes_by_threads, Flags::bytes_to_eight_words}) {
    two_processes(0, flags);
    if (devices > 101) two_processes(1, flags);
  }
  one_process();
}
