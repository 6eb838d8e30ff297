// Which abilities of the device decide the design? Attributes, and the same asked by trying: handles that
// can be exported, host memory that a kernel reaches at the host's address, the step of globaltimer.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "probe.h"

namespace {

struct Attribute {
  CUdevice_attribute id;
  const char* name;
};

const Attribute attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "SMs"},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "compute capability, major"},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "compute capability, minor"},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, "SM clock, highest, kHz"},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, "memory clock, kHz"},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, "memory bus, bits"},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "L2, bytes"},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, "asynchronous copy engines"},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, "shared memory per block, opt-in, bytes"},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, "shared memory per SM, bytes"},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, "shared memory reserved per block, bytes"},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, "blocks per SM"},
    {CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, "stream wait can flush remote writes"},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "64-bit stream memory operations"},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, "stream wait with NOR"},
    {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, "memory synchronisation domains"},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, "GPUDirect RDMA"},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
     "  flush options (1 host, 2 stream operation)"},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, "  order of writes (0 none, 100 owner, 200 all)"},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, "  with virtual memory management"},
    {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, "dma-buf"},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "host memory can be registered"},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, "  read-only memory too"},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, "  reached at the host's address"},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, "pageable memory reached"},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, "  through the host's page tables"},
    {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, "native atomics to host memory"},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "handle: POSIX file descriptor"},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "handle: fabric"},
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, "multicast objects"},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, "stream priorities"},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, "events between processes"},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, "compute mode (0 shared)"},
    {CU_DEVICE_ATTRIBUTE_MPS_ENABLED, "MPS"},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, "NUMA node of the host side"},
};

void print_attributes(int device) {
  const auto get = probe::need_driver<decltype(cuDeviceGetAttribute)>("cuDeviceGetAttribute");
  for (const auto& attribute : attributes) {
    int value = 0;
    const auto error = get(&value, attribute.id, device);
    if (error == CUDA_SUCCESS) {
      std::printf("  %-50s %d\n", attribute.name, value);
    } else {
      std::printf("  %-50s %s\n", attribute.name, probe::name_of(error).c_str());
    }
  }
}

// Makes, exports and frees an allocation; an attribute alone does not say that the platform is set up.
void try_handle(int device, CUmemAllocationHandleType type, const char* name) {
  const auto granularity =
      probe::need_driver<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
  const auto create = probe::need_driver<decltype(cuMemCreate)>("cuMemCreate");
  const auto release = probe::need_driver<decltype(cuMemRelease)>("cuMemRelease");
  const auto export_handle =
      probe::need_driver<decltype(cuMemExportToShareableHandle)>("cuMemExportToShareableHandle");
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device;
  wanted.requestedHandleTypes = type;
  std::size_t least = 0, recommended = 0;
  for (const auto& [size, option] : {std::pair{&least, CU_MEM_ALLOC_GRANULARITY_MINIMUM},
                                     {&recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED}}) {
    const auto error = granularity(size, &wanted, option);
    if (error) return (void)std::printf("  %-20s granularity: %s\n", name, probe::name_of(error).c_str());
  }
  std::printf("  %-20s granularity %zu, recommended %zu bytes; ", name, least, recommended);
  CUmemGenericAllocationHandle allocation{};
  if (const auto error = create(&allocation, recommended, &wanted, 0)) {
    std::printf("create: %s\n", probe::name_of(error).c_str());
    return;
  }
  alignas(8) char handle[256] = {};
  const auto error = export_handle(handle, allocation, type, 0);
  std::printf("create: done, export: %s\n", error ? probe::name_of(error).c_str() : "done");
  int descriptor = -1;
  std::memcpy(&descriptor, handle, sizeof descriptor);
  if (!error && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) close(descriptor);
  CHECK(release(allocation));
}

__global__ void store_word(std::uint64_t* word) { *reinterpret_cast<volatile std::uint64_t*>(word) = 7; }

void try_registered_memory() {
  const std::size_t bytes = 1 << 16;
  const int file = memfd_create("probe", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, bytes) != 0) {
    std::perror("memfd_create");
    std::exit(1);
  }
  void* const host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (host == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  CHECK(cudaHostRegister(host, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
  void* device = nullptr;
  CHECK(cudaHostGetDevicePointer(&device, host, 0));
  store_word<<<1, 1>>>(static_cast<std::uint64_t*>(device));
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  std::printf("  registered memfd: kernel's address %s the host's, a kernel's store %s\n",
              device == host ? "equals" : "differs from",
              *static_cast<volatile std::uint64_t*>(host) == 7 ? "arrives" : "is NOT seen");
  CHECK(cudaHostUnregister(host));
  munmap(host, bytes);
}

void print_green_contexts(int device) {
  const auto get = probe::find_driver<decltype(cuDeviceGetDevResource)>("cuDeviceGetDevResource", 12040);
  const auto split =
      probe::find_driver<decltype(cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount", 12040);
  if (!get || !split) return (void)std::printf("  green contexts: this driver has none\n");
  CUdevResource all{}, group{}, rest{};
  unsigned groups = 1;
  auto error = get(device, &all, CU_DEV_RESOURCE_TYPE_SM);
  if (!error) error = split(&group, &groups, &all, &rest, 0, 1);
  if (error) return (void)std::printf("  green contexts: %s\n", probe::name_of(error).c_str());
  std::printf("  green contexts: fewest SMs of one %u, of %u\n", group.sm.smCount, all.sm.smCount);
}

__global__ void sample_timer(std::uint64_t* samples, int count) {
  for (int i = 0; i < count; ++i) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(samples[i]));
}

void print_timer() {
  const int count = 200000;
  std::uint64_t* samples = nullptr;
  CHECK(cudaMallocManaged(&samples, count * sizeof *samples));
  sample_timer<<<1, 1>>>(samples, count);  // brings the pages to the device
  sample_timer<<<1, 1>>>(samples, count);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  std::vector<double> steps;
  for (int i = 1; i < count; ++i) {
    if (samples[i] != samples[i - 1]) steps.push_back(static_cast<double>(samples[i] - samples[i - 1]));
  }
  const double span = static_cast<double>(samples[count - 1] - samples[0]);
  if (steps.empty()) return (void)std::printf("  globaltimer: did not move\n");
  const auto step = probe::spread(steps);
  std::printf(
      "  globaltimer: %zu steps in %.0f us; smallest %.0f ns, p50 %.0f, p90 %.0f (one sample each %.1f ns)\n",
      steps.size(), span / 1e3, *std::min_element(steps.begin(), steps.end()), step.p50, step.p90,
      span / count);
  CHECK(cudaFree(samples));
}

void print_peers(int device, int devices) {
  for (int peer = 0; peer < devices; ++peer) {
    if (peer == device) continue;
    int access = 0, atomics = 0, rank = 0;
    CHECK(cudaDeviceGetP2PAttribute(&access, cudaDevP2PAttrAccessSupported, device, peer));
    CHECK(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer));
    CHECK(cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, device, peer));
    std::printf("  peer %d: access %d, native atomics %d, performance rank %d\n", peer, access, atomics,
                rank);
  }
}

}  // namespace

int main() {
  int devices = 0, least = 0, greatest = 0;
  CHECK(cudaGetDeviceCount(&devices));
  for (int device = 0; device < devices; ++device) {
    CHECK(cudaSetDevice(device));
    CHECK(cudaFree(nullptr));
    std::printf("device %d: ", device);
    probe::print_device(device);
    if (device > 0) {  // the same model: only what concerns pairs
      print_peers(device, devices);
      continue;
    }
    print_attributes(device);
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    std::printf("  stream priorities %d (least) to %d\n", least, greatest);
    try_handle(device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "file descriptor");
    try_handle(device, CU_MEM_HANDLE_TYPE_FABRIC, "fabric");
    try_registered_memory();
    print_green_contexts(device);
    print_timer();
    print_peers(device, devices);
  }
}
