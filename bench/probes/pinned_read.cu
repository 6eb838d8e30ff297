// How long does a kernel's thread take to load a word of pinned host memory, and to store one and fence,
// when 1, 8, 24 or 132 blocks do it at once? The same in device memory. And what does it add to a kernel?
// Stores without a fence are posted: their row is a rate, not a latency.
#include <cuda/atomic>

#include "probe.h"

namespace {

using Word = std::uint64_t;
using Reference = cuda::atomic_ref<Word, cuda::thread_scope_system>;

constexpr int accesses = 200;

enum class Access { load_relaxed, load_acquire, store_only, store_fence, store_release, eight_bytes_fence };
enum class Where { same_word, own_lines };

struct Case {
  Access access;
  const char* name;
};

const Case cases[] = {
    {Access::load_relaxed, "ld.relaxed.sys"},  {Access::load_acquire, "ld.acquire.sys"},
    {Access::store_only, "st.relaxed.sys"},    {Access::store_fence, "st.relaxed.sys, membar.sys"},
    {Access::store_release, "st.release.sys"}, {Access::eight_bytes_fence, "8 x st.u8, membar.sys"},
};

__device__ std::uint64_t now_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__device__ void store_byte(char* byte, unsigned value) {
  asm volatile("st.relaxed.sys.global.u8 [%0], %1;" ::"l"(byte), "r"(value) : "memory");
}

// Returns what it read: the words are 0, and the next address depends on it, so that loads follow each other.
__device__ Word access_once(Access access, Word* word, Word value) {
  switch (access) {
    case Access::load_relaxed:
      return Reference(*word).load(cuda::memory_order_relaxed);
    case Access::load_acquire:
      return Reference(*word).load(cuda::memory_order_acquire);
    case Access::store_only:
      Reference(*word).store(0, cuda::memory_order_relaxed);
      return 0;
    case Access::store_fence:
      Reference(*word).store(0, cuda::memory_order_relaxed);
      __threadfence_system();
      return 0;
    case Access::store_release:
      Reference(*word).store(0, cuda::memory_order_release);
      return 0;
    case Access::eight_bytes_fence:
      for (int i = 0; i < 8; ++i) store_byte(reinterpret_cast<char*>(word) + i, static_cast<unsigned>(value));
      __threadfence_system();
      return 0;
  }
  return 0;
}

// One thread per block. Ns per access of each block; a first access, not counted, opens translations.
template <Access access>
__global__ void measure(Word* words, int stride, double* ns, Word* sink) {
  Word* word = words + blockIdx.x * stride;
  Word read = access_once(access, word, 0);
  const auto begin = now_ns();
  for (int i = 0; i < accesses; ++i) read += access_once(access, word + read, 0);
  if (read != 0) *sink = read;
  ns[blockIdx.x] = static_cast<double>(now_ns() - begin) / accesses;
}

using Measure = void (*)(Word*, int, double*, Word*);

Measure kernel_of(Access access) {
  switch (access) {
    case Access::load_relaxed:
      return measure<Access::load_relaxed>;
    case Access::load_acquire:
      return measure<Access::load_acquire>;
    case Access::store_only:
      return measure<Access::store_only>;
    case Access::store_fence:
      return measure<Access::store_fence>;
    case Access::store_release:
      return measure<Access::store_release>;
    case Access::eight_bytes_fence:
      return measure<Access::eight_bytes_fence>;
  }
  return nullptr;
}

struct Memory {
  const char* name;
  Word* words;
};

constexpr int most_blocks = 132, line_words = 16;

void print_latencies(const Memory& memory, cudaStream_t stream) {
  double* const ns = probe::pinned<double>(most_blocks);
  Word* const sink = probe::pinned<Word>(1);
  for (const auto place : {Where::same_word, Where::own_lines}) {
    for (const auto& entry : cases) {
      std::printf("%-12s %-10s %-28s", memory.name, place == Where::same_word ? "one word" : "own lines",
                  entry.name);
      for (int blocks : {1, 8, 24, most_blocks}) {
        std::vector<double> medians, slowest;
        for (int repetition = 0; repetition < 8; ++repetition) {
          const auto kernel = kernel_of(entry.access);
          kernel<<<blocks, 1, 0, stream>>>(memory.words, place == Where::same_word ? 0 : line_words, ns,
                                           sink);
          CHECK(cudaGetLastError());
          CHECK(cudaStreamSynchronize(stream));
          if (repetition == 0) continue;
          medians.push_back(probe::spread({ns, ns + blocks}).p50);
          slowest.push_back(*std::max_element(ns, ns + blocks));
        }
        std::printf(" | %7.0f %7.0f", probe::spread(medians).p50, probe::spread(slowest).p50);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  CHECK(cudaFreeHost(ns));
  CHECK(cudaFreeHost(sink));
}

__global__ void begin_with_load(Word* word, Word* sink, int loads) {
  if (threadIdx.x == 0 && loads > 0) {
    const Word read = Reference(*word).load(cuda::memory_order_acquire);
    if (read != 0) *sink = read;
  }
  __syncthreads();
}

// A kernel whose blocks begin with one load each, against one that does not load. Us per kernel in a row.
double kernel_us(Word* word, Word* sink, int blocks, int loads, cudaStream_t stream) {
  const int kernels = 200;
  const probe::WaitWord wait;
  volatile Word* const gate = probe::pinned<Word>(1);
  probe::Timer timer;
  std::vector<double> times;
  for (int repetition = 0; repetition < 6; ++repetition) {
    *gate = 0;  // held until all are queued, so that the host's pace does not count
    wait(stream, gate, 1);
    timer.start(stream);
    for (int i = 0; i < kernels; ++i) begin_with_load<<<blocks, 256, 0, stream>>>(word, sink, loads);
    CHECK(cudaGetLastError());
    timer.stop(stream);
    *gate = 1;
    const double us = timer.us() / kernels;
    if (repetition > 0) times.push_back(us);
  }
  return probe::spread(times).p50;
}

}  // namespace

int main() {
  CHECK(cudaSetDevice(0));
  probe::print_device();
  const auto stream = probe::new_stream();
  Word* device = nullptr;
  CHECK(cudaMalloc(&device, most_blocks * line_words * sizeof(Word)));
  CHECK(cudaMemset(device, 0, most_blocks * line_words * sizeof(Word)));
  CHECK(cudaDeviceSynchronize());
  const Memory memories[] = {{"pinned host", probe::pinned<Word>(most_blocks * line_words)},
                             {"device", device}};

  std::printf(
      "ns per access, %d in a row by one thread of each block: p50 of the blocks, slowest block\n%-52s",
      accesses, "");
  for (int blocks : {1, 8, 24, most_blocks})
    std::printf(" | %3d block%s     ", blocks, blocks > 1 ? "s" : " ");
  std::printf("\n");
  for (const auto& memory : memories) print_latencies(memory, stream);

  std::printf("us per kernel of a row of 200, blocks of 256 threads, one ld.acquire.sys in each block:\n");
  Word* const sink = probe::pinned<Word>(1);
  for (int blocks : {1, 8, 24, most_blocks}) {
    std::printf("  %3d blocks: no load %.2f, device %.2f, pinned host %.2f\n", blocks,
                kernel_us(device, sink, blocks, 0, stream), kernel_us(device, sink, blocks, 1, stream),
                kernel_us(memories[0].words, sink, blocks, 1, stream));
  }
}
