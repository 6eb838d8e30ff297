// The instructions that the language has no word for: asynchronous copies with their barriers, and loads and
// stores with an order. PTX ISA 8.0, sections 9.7.8.24 (asynchronous copies) and 9.7.12 (mbarrier).
#pragma once

#include <cstdint>

namespace sluice::cuda {

// Loads and stores.

template <class T>
__device__ inline T load_relaxed(const T* at) {
  return *static_cast<const volatile T*>(at);
}
__device__ inline std::uint32_t load_relaxed_system(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline std::uint64_t load_relaxed_system(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline std::uint32_t load_acquire_system(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline void store_relaxed_system(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline void store_release_system(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ inline void store_release_system(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline void store_relaxed_system(std::uint8_t* at, std::uint8_t value) {
  asm volatile("st.relaxed.sys.u8 [%0], %1;" ::"l"(at), "r"(static_cast<std::uint32_t>(value)) : "memory");
}

// Between a kernel and the next one of the same stream, which was launched to come early (start.cuh). The first
// returns when all kernels before have ended and their writes are visible; both do nothing elsewhere.
__device__ inline void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_next_kernel_come() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Nanoseconds of the device's wall clock.
__device__ inline std::int64_t now_ns() {
  std::int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

// Copies of 16 bytes by each thread, in groups. The thread that copied waits for its groups; others see the bytes
// behind a barrier of threads.
__device__ inline void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `pending` groups of this thread have not come.
template <int pending>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Bulk copies. Addresses and sizes are multiples of 16 bytes.

// A barrier in shared memory: a phase ends when `arrivals` threads have arrived and the bytes they expect
// have come.
class Barrier {
 public:
  __device__ void initialise(std::uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  __device__ void arrive_expecting(std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  // Until the phase of this parity has ended.
  __device__ void wait(std::uint32_t parity) {
    std::uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}"
          : "=r"(done)
          : "r"(address()), "r"(parity)
          : "memory");
    }
  }
  __device__ std::uint32_t address() const { return shared_address(&word_); }

 private:
  std::uint64_t word_;
};

// Makes initialised barriers visible to the asynchronous proxy.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Between generic accesses to global memory and bulk copies of the same bytes.
__device__ inline void fence_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// From generic accesses to shared memory to bulk copies of the same bytes, by the threads that made them.
__device__ inline void fence_proxy_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void bulk_load(void* to, const void* from, std::uint32_t bytes, Barrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(barrier.address())
               : "memory");
}
__device__ inline void bulk_store(void* to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most `pending` groups of this thread still read shared memory.
template <int pending>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
// Until all groups of this thread have been written.
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace sluice::cuda
