// Which streams stand behind another stream's wait, and does that change? Streams of the highest priority, made in a
// row, a kernel has run in each. Then others are made, used and destroyed; and threads launch at once into some of them.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "probe.h"

namespace {

constexpr int most = 64;
constexpr std::uint64_t all_set = 0x0101010101010101;

struct alignas(64) Word {
  std::uint64_t value;
};

__global__ void empty() {}
__global__ void set_others(Word* words, int lanes, int me) {
  for (int lane = 0; lane < lanes; ++lane) {
    if (lane != me) reinterpret_cast<volatile char*>(words + lane)[me] = 1;
  }
  __threadfence_system();
}

cudaStream_t make(bool urgent) {
  int least = 0, greatest = 0;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream{};
  CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  empty<<<1, 1, 0, stream>>>();
  CHECK(cudaStreamSynchronize(stream));
  return stream;
}

bool ends_within(cudaStream_t stream, double us) {
  const double began = probe::now_us();
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    if (probe::now_us() - began > us) return false;
  }
  return true;
}

// Pairs (i, j): a kernel in j does not end while i waits.
std::vector<std::pair<int, int>> shared(const std::vector<cudaStream_t>& streams, Word* words, const probe::WaitWord& wait) {
  std::vector<std::pair<int, int>> pairs;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    *const_cast<volatile std::uint64_t*>(&words[0].value) = 0;
    wait(streams[i], &words[0].value, 1);
    for (std::size_t j = 0; j < streams.size(); ++j) {
      if (j == i) continue;
      empty<<<1, 1, 0, streams[j]>>>();
      if (!ends_within(streams[j], 3000)) pairs.emplace_back(i, j);
    }
    *const_cast<volatile std::uint64_t*>(&words[0].value) = 1;
    CHECK(cudaDeviceSynchronize());
  }
  return pairs;
}

void say_shared(const char* when, const std::vector<cudaStream_t>& streams, Word* words, const probe::WaitWord& wait) {
  const auto pairs = shared(streams, words, wait);
  std::printf("  %-64s %2zu streams, %3zu pairs behind each other:", when, streams.size(), pairs.size());
  for (std::size_t p = 0; p < std::min<std::size_t>(pairs.size(), 12); ++p) std::printf(" %d-%d", pairs[p].first, pairs[p].second);
  std::printf("\n");
}

struct Manner {
  const char* name;
  int lanes;
  bool permuted;
  int rest_us;      // between rounds
  bool by_events;   // each lane waits for an event of the legacy stream first, as for arguments
  int others;       // further threads that copy in streams of their own
};

void rounds(const Manner& manner, std::vector<cudaStream_t> streams, Word* words, const probe::WaitWord& wait, double seconds) {
  std::mt19937 random(1);
  int count = 0, stuck = 0, legacy_busy = 0;
  std::vector<int> order(streams.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  const double began = probe::now_us();
  const int lanes = manner.lanes;
  std::atomic<int> round{0}, stuck_lanes{0}, busy{0};
  std::atomic<bool> stop{false};
  std::barrier together(lanes + 1);
  std::vector<std::thread> threads;
  std::vector<cudaEvent_t> events(lanes);
  for (auto& event : events) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  std::string which;
  for (int lane = 0; lane < lanes; ++lane) {
    threads.emplace_back([&, lane] {
      CHECK(cudaSetDevice(0));
      while (true) {
        together.arrive_and_wait();
        if (stop) return;
        const cudaStream_t stream = streams[order[lane]];
        if (manner.by_events && cudaStreamQuery(nullptr) == cudaErrorNotReady) ++busy;
        if (manner.by_events) {
          CHECK(cudaEventRecord(events[lane], nullptr));
          CHECK(cudaStreamWaitEvent(stream, events[lane], 0));
        }
        set_others<<<1, 1, 0, stream>>>(words, lanes, lane);
        wait(stream, &words[lane].value, all_set);
        empty<<<1, 32, 0, stream>>>();
        if (!ends_within(stream, 200'000)) ++stuck_lanes;
        together.arrive_and_wait();
      }
    });
  }
  while (probe::now_us() - began < seconds * 1e6 && stuck < 5) {
    if (manner.permuted) std::shuffle(order.begin(), order.end(), random);
    for (int lane = 0; lane < lanes; ++lane) {
      auto* const bytes = reinterpret_cast<volatile char*>(words + lane);
      for (int byte = 0; byte < 8; ++byte) bytes[byte] = byte >= lanes || byte == lane ? 1 : 0;
    }
    stuck_lanes = 0;
    together.arrive_and_wait();
    together.arrive_and_wait();
    ++count;
    if (stuck_lanes > 0) {
      ++stuck;
      which += " [";
      for (int lane = 0; lane < lanes; ++lane) {
        unsigned seen = 0;
        for (int other = 0; other < lanes; ++other) seen += other != lane && reinterpret_cast<volatile char*>(words + other)[lane];
        which += (lane ? " " : "") + std::to_string(order[lane]) + (seen ? "" : "!");
      }
      which += "]";
    }
    for (int lane = 0; lane < lanes; ++lane) *const_cast<volatile std::uint64_t*>(&words[lane].value) = all_set;
    CHECK(cudaDeviceSynchronize());
    if (manner.rest_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(manner.rest_us));
  }
  stop = true;
  together.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  legacy_busy = busy;
  std::printf("  %-64s %6d rounds, %d stuck, legacy busy %d%s\n", manner.name, count, stuck, legacy_busy, which.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  CHECK(cudaSetDevice(0));
  probe::print_device();
  Word* const words = probe::pinned<Word>(most);
  const probe::WaitWord wait;
  for (const bool urgent : {true, false}) {
    std::printf("%s priority\n", urgent ? "highest" : "lowest");
    std::vector<cudaStream_t> waiting, others;
    const auto together = [&] {
      std::vector<cudaStream_t> all = waiting;
      all.insert(all.end(), others.begin(), others.end());
      return all;
    };
    for (int i = 0; i < 14; ++i) waiting.push_back(make(urgent));
    say_shared("14 made in a row", waiting, words, wait);
    for (int i = 0; i < 7; ++i) others.push_back(make(urgent));
    say_shared("7 more", together(), words, wait);
    const auto all_manners = [&] {
      rounds({"2 threads at once, the first", 2, false, 0, false, 0}, waiting, words, wait, seconds);
      rounds({"7 threads at once, the first 7", 7, false, 0, false, 0}, waiting, words, wait, seconds);
      rounds({"2 threads at once, any of the 14, 2 ms rest", 2, true, 2000, false, 0}, waiting, words, wait, seconds);
      rounds({"7 threads at once, any of the 14, 2 ms rest", 7, true, 2000, false, 0}, waiting, words, wait, seconds);
      rounds({"7 threads at once, any of the 14, events of the legacy stream", 7, true, 2000, true, 0}, waiting, words, wait, seconds);
    };
    all_manners();
    for (int i = 0; i < 25; ++i) others.push_back(make(urgent));
    say_shared("25 more", together(), words, wait);
    for (int i = 0; i < 25; ++i) {
      CHECK(cudaStreamDestroy(others.back()));
      others.pop_back();
    }
    say_shared("those destroyed", together(), words, wait);
    all_manners();
    for (int i = 0; i < 9; ++i) others.push_back(make(urgent));
    say_shared("9 new", together(), words, wait);
    for (const cudaStream_t stream : together()) CHECK(cudaStreamDestroy(stream));
  }
}
