// How fast does an SM only load, and only store: bulk copies and 16-byte loads and stores, by number of SMs?
// One block per SM. Rates are of the bytes read, or written, and of one SM in brackets.
#include "bulk.cuh"

namespace {

using namespace probe;

struct Args {
  const char* from;
  char* to;
  std::size_t bytes;
  int slot_bytes, slots;
  unsigned* sink;
};

__global__ void bulk_load(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char ring[];
  __shared__ std::uint64_t full[most_slots];
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < args.slots; ++slot) init_barrier(full[slot], 1);
  }
  publish_barriers();
  if (threadIdx.x != 0) return;
  int slot = 0, busy = 0, oldest = 0;
  unsigned parity = 0;
  const auto finish_oldest = [&] {
    wait(full[oldest], parity);
    if (++oldest == args.slots) oldest = 0, parity ^= 1;
    --busy;
  };
  const std::size_t stride = std::size_t{gridDim.x} * args.slot_bytes;
  for (std::size_t at = std::size_t{blockIdx.x} * args.slot_bytes; at < args.bytes; at += stride) {
    if (busy == args.slots) finish_oldest();
    expect(full[slot], args.slot_bytes);
    load(ring + slot * args.slot_bytes, args.from + at, args.slot_bytes, full[slot]);
    slot = slot + 1 == args.slots ? 0 : slot + 1;
    ++busy;
  }
  while (busy > 0) finish_oldest();
}

__global__ void bulk_store(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char ring[];
  for (int i = threadIdx.x; i < args.slots * args.slot_bytes / 4; i += blockDim.x) {
    reinterpret_cast<unsigned*>(ring)[i] = i * 2654435761u;
  }
  cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
  __syncthreads();
  if (threadIdx.x != 0) return;
  int slot = 0;
  const std::size_t stride = std::size_t{gridDim.x} * args.slot_bytes;
  for (std::size_t at = std::size_t{blockIdx.x} * args.slot_bytes; at < args.bytes; at += stride) {
    store(args.to + at, ring + slot * args.slot_bytes, args.slot_bytes);
    commit();
    wait_until_read<16>();
    slot = slot + 1 == args.slots ? 0 : slot + 1;
  }
  wait_until_written();
}

constexpr int unroll = 8;

__global__ void __launch_bounds__(1024, 1) plain_load(const __grid_constant__ Args args) {
  const auto* from = reinterpret_cast<const uint4*>(args.from);
  const std::size_t count = args.bytes / 16, step = std::size_t{blockDim.x} * unroll;
  unsigned sum = 0;
  for (std::size_t at = blockIdx.x * step + threadIdx.x; at < count; at += gridDim.x * step) {
    uint4 values[unroll] = {};
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      if (at + i * blockDim.x < count) values[i] = from[at + i * blockDim.x];
    }
#pragma unroll
    for (int i = 0; i < unroll; ++i) sum ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
  }
  if (sum == 0x5eed5eedu) *args.sink = sum;
}

__global__ void __launch_bounds__(1024, 1) plain_store(const __grid_constant__ Args args) {
  auto* to = reinterpret_cast<uint4*>(args.to);
  const std::size_t count = args.bytes / 16, step = std::size_t{blockDim.x} * unroll;
  const unsigned seed = threadIdx.x * 2654435761u;
  for (std::size_t at = blockIdx.x * step + threadIdx.x; at < count; at += gridDim.x * step) {
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      if (at + i * blockDim.x < count) to[at + i * blockDim.x] = make_uint4(seed, seed + i, ~seed, seed ^ i);
    }
  }
}

using Kernel = void (*)(Args);

void print_rates(const Arena& arena, cudaStream_t stream, const char* name, Kernel kernel, int threads,
                 int slot_bytes) {
  Args args{arena.from(), arena.to(), arena.bytes(), slot_bytes, 0, arena.sink()};
  std::size_t shared = 0;
  if (slot_bytes > 0) {
    args.slots = most_shared_bytes / slot_bytes;
    shared = static_cast<std::size_t>(args.slots) * slot_bytes;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes));
  }
  std::printf("%-11s %6d", name, slot_bytes);
  for (int sms : {1, 4, 8, 16, 24}) {
    const auto time = time_us(arena, stream, 9, [&](cudaStream_t on) {
      kernel<<<sms, threads, shared, on>>>(args);
      CHECK(cudaGetLastError());
    });
    const double rate = arena.bytes() / time.p50 * 1e-3;
    std::printf(" | %7.1f (%5.1f) %7.1f", rate, rate / sms, time.p50);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main() {
  CHECK(cudaSetDevice(0));
  print_device();
  const auto stream = new_stream();
  const Arena arena(std::size_t{8192} * 14336);
  const auto nothing = time_us(arena, stream, 21, [](cudaStream_t) {});
  std::printf("%zu MB, L2 cold, p50 of 9; two events with nothing between: %.1f us, contained in all times\n",
              arena.bytes() >> 20, nothing.p50);
  std::printf("%-11s %6s", "", "slot B");
  for (int sms : {1, 4, 8, 16, 24}) std::printf(" | %2d SMs GB/s (each)   us", sms);
  std::printf("\n");
  for (int slot_bytes : {2048, 4096, 7168, 14336})
    print_rates(arena, stream, "bulk load", bulk_load, 32, slot_bytes);
  for (int slot_bytes : {2048, 4096, 7168, 14336})
    print_rates(arena, stream, "bulk store", bulk_store, 32, slot_bytes);
  print_rates(arena, stream, "plain load", plain_load, 1024, 0);
  print_rates(arena, stream, "plain store", plain_store, 1024, 0);
}
