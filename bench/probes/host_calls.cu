// Which calls of the host are held up while a stream waits for a word that somebody else sets? One stream waits; a
// thread sets the word after a while; the call is timed meanwhile, and a kernel in another stream behind it.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "probe.h"

namespace {

constexpr double hold_us = 200'000;
constexpr std::size_t bytes = 4 << 20;

__global__ void empty() {}

struct Case {
  const char* name;
  std::function<void()> before;  // not timed, nothing waits
  std::function<void()> call;
  std::function<void()> after;
};

struct Times {
  double call, kernel;
};

Times timed(const Case& one, volatile std::uint64_t* word, const probe::WaitWord& wait, cudaStream_t waiting,
            cudaStream_t other) {
  *word = 0;
  one.before();
  wait(waiting, word, 1);
  std::atomic<bool> ended{false};
  std::thread release([&] {
    const double began = probe::now_us();
    while (probe::now_us() - began < hold_us && !ended) usleep(100);
    *word = 1;
  });
  usleep(2000);  // the wait has begun
  const double began = probe::now_us();
  one.call();
  const double returned = probe::now_us();
  empty<<<1, 1, 0, other>>>();
  CHECK(cudaStreamSynchronize(other));
  const double ran = probe::now_us();
  ended = true;
  release.join();
  CHECK(cudaStreamSynchronize(waiting));
  one.after();
  return {returned - began, ran - returned};
}

CUmemAllocationProp properties() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return prop;
}

cudaStream_t used_stream() {
  const cudaStream_t stream = probe::new_stream();
  empty<<<1, 1, 0, stream>>>();
  CHECK(cudaStreamSynchronize(stream));
  return stream;
}

// What the cases make and give back.
struct Made {
  explicit Made(cudaStream_t stream) : other(stream) {
    pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    std::memset(pages, 0, bytes);
    CHECK(cudaMalloc(&device, bytes));
    rights.location = prop.location;
    rights.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }

  void create_window() {
    CHECK(create(&handle, bytes, &prop, 0));
    CHECK(reserve(&address, bytes, 0, 0, 0));
    CHECK(map(address, bytes, 0, handle, 0));
    CHECK(access(address, bytes, &rights, 1));
  }
  void release_window() {
    CHECK(unmap(address, bytes));
    CHECK(free_address(address, bytes));
    CHECK(release(handle));
  }
  void make_event() { CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); }
  void record_event() {
    make_event();
    CHECK(cudaEventRecord(event, other));
    CHECK(cudaEventSynchronize(event));
  }
  void copy(void* to, const void* from) {
    CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, other));
    CHECK(cudaStreamSynchronize(other));
  }

  decltype(cuMemCreate)* create = probe::need_driver<decltype(cuMemCreate)>("cuMemCreate");
  decltype(cuMemRelease)* release = probe::need_driver<decltype(cuMemRelease)>("cuMemRelease");
  decltype(cuMemAddressReserve)* reserve = probe::need_driver<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(cuMemAddressFree)* free_address = probe::need_driver<decltype(cuMemAddressFree)>("cuMemAddressFree");
  decltype(cuMemMap)* map = probe::need_driver<decltype(cuMemMap)>("cuMemMap");
  decltype(cuMemUnmap)* unmap = probe::need_driver<decltype(cuMemUnmap)>("cuMemUnmap");
  decltype(cuMemSetAccess)* access = probe::need_driver<decltype(cuMemSetAccess)>("cuMemSetAccess");
  CUmemAllocationProp prop = properties();
  CUmemAccessDesc rights{};
  cudaStream_t other;
  void* memory = nullptr;
  void* pages = nullptr;
  std::vector<char> pageable = std::vector<char>(bytes);
  char* device = nullptr;
  char* host = probe::pinned<char>(bytes);
  CUmemGenericAllocationHandle handle{};
  CUdeviceptr address{};
  cudaStream_t stream{};
  cudaEvent_t event{};
};

std::vector<Case> cases_of(Made& made) {
  const auto nothing = [] {};
  const auto malloc_device = [&] { CHECK(cudaMalloc(&made.memory, bytes)); };
  const auto free_device = [&] { CHECK(cudaFree(made.memory)); };
  const auto malloc_host = [&] { CHECK(cudaHostAlloc(&made.memory, bytes, cudaHostAllocPortable)); };
  const auto free_host = [&] { CHECK(cudaFreeHost(made.memory)); };
  const auto register_pages = [&] { CHECK(cudaHostRegister(made.pages, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped)); };
  const auto unregister_pages = [&] { CHECK(cudaHostUnregister(made.pages)); };
  const auto create_window = [&] { made.create_window(); };
  const auto release_window = [&] { made.release_window(); };
  const auto make_stream = [&] { made.stream = probe::new_stream(); };
  const auto use_stream = [&] { made.stream = used_stream(); };
  const auto destroy_stream = [&] { CHECK(cudaStreamDestroy(made.stream)); };
  const auto destroy_event = [&] { CHECK(cudaEventDestroy(made.event)); };
  return {
      {"cudaMalloc", nothing, malloc_device, free_device},
      {"cudaFree", malloc_device, free_device, nothing},
      {"cudaHostAlloc", nothing, malloc_host, free_host},
      {"cudaFreeHost", malloc_host, free_host, nothing},
      {"cudaHostRegister", nothing, register_pages, unregister_pages},
      {"cudaHostUnregister", register_pages, unregister_pages, nothing},
      {"cuMemCreate, AddressReserve, Map, SetAccess", nothing, create_window, release_window},
      {"cuMemUnmap, AddressFree, Release", create_window, release_window, nothing},
      {"cudaStreamCreateWithFlags", nothing, make_stream, destroy_stream},
      {"the same, a kernel, and its end", nothing, use_stream, destroy_stream},
      {"cudaStreamDestroy", use_stream, destroy_stream, nothing},
      {"cudaEventCreate", nothing, [&] { made.make_event(); }, destroy_event},
      {"cudaEventDestroy", [&] { made.record_event(); }, destroy_event, nothing},
      {"a copy to the device from pageable memory", nothing, [&] { made.copy(made.device, made.pageable.data()); }, nothing},
      {"a copy to the device from pinned memory", nothing, [&] { made.copy(made.device, made.host); }, nothing},
      {"a copy from the device to pageable memory", nothing, [&] { made.copy(made.pageable.data(), made.device); }, nothing},
      {"a copy from the device to pinned memory", nothing, [&] { made.copy(made.host, made.device); }, nothing},
      {"cudaMemsetAsync and its end", nothing, [&] {
         CHECK(cudaMemsetAsync(made.device, 0, bytes, made.other));
         CHECK(cudaStreamSynchronize(made.other));
       }, nothing},
  };
}

}  // namespace

int main() {
  probe::begin_with_queues();
  const probe::WaitWord wait;
  auto* const word = probe::pinned<std::uint64_t>(8);
  const cudaStream_t waiting = used_stream(), other = used_stream();
  Made made(other);
  std::printf("a stream waits for %.0f ms, or until the call has returned\n", hold_us / 1e3);
  for (const Case& one : cases_of(made)) {
    timed(one, word, wait, waiting, other);  // first calls load
    std::vector<double> calls, kernels;
    for (int i = 0; i < 5; ++i) {
      const Times times = timed(one, word, wait, waiting, other);
      calls.push_back(times.call);
      kernels.push_back(times.kernel);
    }
    const double call = probe::spread(calls).p50, kernel = probe::spread(kernels).p90;
    std::printf("  %-46s %10.0f us, a kernel behind it at most %8.0f us%s\n", one.name, call, kernel,
                std::max(call, kernel) > 0.5 * hold_us ? "  held up" : "");
  }
}
