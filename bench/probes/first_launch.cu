// Can the first launch into a stream end up behind another stream's wait, although there are queues for all? Three
// threads, a stream each: a kernel that sets the others' words, a stream wait for the own word, a kernel.
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "probe.h"

namespace {

constexpr int lanes = 3;
constexpr std::uint64_t all_set = 0x0101010101010101;
constexpr double limit_us = 300'000, seconds = 4;
constexpr int enough = 10;

struct alignas(64) Word {
  std::uint64_t value;
};

__global__ void empty() {}
__global__ void set_others(Word* words, int me) {
  for (int lane = 0; lane < lanes; ++lane) {
    if (lane != me) reinterpret_cast<volatile char*>(words + lane)[me] = 1;
  }
  __threadfence_system();
}

struct Manner {
  const char* name;
  bool threads;     // one for each lane
  bool new_streams; // in every round
  bool used;        // a kernel has run in a stream before anybody waits
};

cudaStream_t make_stream(const Manner& manner) {
  const cudaStream_t stream = probe::new_stream();
  if (manner.used) {
    empty<<<1, 1, 0, stream>>>();
    CHECK(cudaStreamSynchronize(stream));
  }
  return stream;
}

class Round {
 public:
  Round(Word* words, const probe::WaitWord& wait) : words_(words), wait_(wait) {
    for (int lane = 0; lane < lanes; ++lane) {
      auto* const bytes = reinterpret_cast<volatile char*>(words_ + lane);
      for (int byte = 0; byte < 8; ++byte) bytes[byte] = byte >= lanes || byte == lane ? 1 : 0;
    }
  }

  void queue(int lane, cudaStream_t stream) const {
    set_others<<<1, 1, 0, stream>>>(words_, lane);
    wait_(stream, &words_[lane].value, all_set);
    empty<<<1, 32, 0, stream>>>();
  }

  // Whether the lane came to its end; else it is let go.
  bool ends(cudaStream_t stream) const {
    const double began = probe::now_us();
    while (cudaStreamQuery(stream) == cudaErrorNotReady) {
      if (probe::now_us() - began > limit_us) return false;
    }
    return true;
  }
  void release() const {
    for (int lane = 0; lane < lanes; ++lane) *const_cast<volatile std::uint64_t*>(&words_[lane].value) = all_set;
  }

 private:
  Word* words_;
  const probe::WaitWord& wait_;
};

bool run_round(const Manner& manner, const Round& round, std::vector<cudaStream_t>& streams) {
  std::barrier together(manner.threads ? lanes : 1);
  std::atomic<bool> stuck{false};
  const auto make = [&](int lane) {
    if (streams[lane] == nullptr) streams[lane] = make_stream(manner);
  };
  const auto watch = [&](int lane) {
    if (!round.ends(streams[lane])) stuck = true;
  };
  if (manner.threads) {
    std::vector<std::thread> threads;
    for (int lane = 0; lane < lanes; ++lane) {
      threads.emplace_back([&, lane] {
        make(lane);
        together.arrive_and_wait();
        round.queue(lane, streams[lane]);
        watch(lane);
      });
    }
    for (std::thread& thread : threads) thread.join();
  } else {
    for (int lane = 0; lane < lanes; ++lane) make(lane);
    for (int lane = 0; lane < lanes; ++lane) round.queue(lane, streams[lane]);
    for (int lane = 0; lane < lanes; ++lane) watch(lane);
  }
  round.release();
  for (cudaStream_t& stream : streams) {
    CHECK(cudaStreamSynchronize(stream));
    if (!manner.new_streams) continue;
    CHECK(cudaStreamDestroy(stream));
    stream = nullptr;
  }
  return !stuck;
}

void measure(const Manner& manner, Word* words, const probe::WaitWord& wait) {
  std::vector<cudaStream_t> streams(lanes);
  int rounds = 0, stuck = 0;
  const double began = probe::now_us();
  for (; probe::now_us() - began < seconds * 1e6 && stuck < enough; ++rounds) {
    if (!run_round(manner, Round(words, wait), streams)) ++stuck;
  }
  std::printf("  %-52s %6d rounds, %d stuck\n", manner.name, rounds, stuck);
  for (const cudaStream_t stream : streams) {
    if (stream) CHECK(cudaStreamDestroy(stream));
  }
}

}  // namespace

int main() {
  probe::begin_with_queues();
  std::printf("%d lanes, 32 queues; a round is stuck when it takes %.0f ms\n", lanes, limit_us / 1e3);
  Word* const words = probe::pinned<Word>(lanes);
  const probe::WaitWord wait;
  for (const Manner& manner : {Manner{"new streams, a thread each", true, true, false},
                               Manner{"the same, a kernel has run in each stream before", true, true, true},
                               Manner{"streams of the rounds before, a thread each", true, false, false},
                               Manner{"new streams, one thread for all", false, true, false}}) {
    measure(manner, words, wait);
  }
}
