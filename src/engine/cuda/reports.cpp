#include "engine/cuda/reports.h"

#include <map>
#include <new>

#include "core/place.h"
#include "engine/cuda/capture.h"
#include "engine/cuda/driver.h"

namespace sluice::cuda {

namespace {

constexpr std::size_t reports_per_slab = 64;

// Slabs are kept for later communicators: freeing pinned memory waits for every stream of the process, also for
// one in which another rank waits for this one to leave.
class Slabs {
 public:
  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto& free = free_[bytes];
    if (!free.empty()) {
      void* const slab = free.back();
      free.pop_back();
      return slab;
    }
    const UntouchedCaptures beside;
    void* slab = nullptr;
    check(cudaHostAlloc(&slab, bytes, cudaHostAllocPortable), "cudaHostAlloc", -1);
    return slab;
  }
  void give(void* slab, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    free_[bytes].push_back(slab);
  }

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;
};

// Never destroyed: results may outlive everything else.
Slabs& slabs() {
  static Slabs& once = *new Slabs;
  return once;
}

}  // namespace

ReportPool::ReportPool(int ranks, int local_experts)
    : ranks_(ranks), local_experts_(local_experts),
      stride_(static_cast<std::size_t>(
          core::align_up(static_cast<std::int64_t>(sizeof(core::Report)) + 8LL * (ranks + local_experts), 64))) {
  grow();
}

ReportPool::~ReportPool() {
  for (void* slab : slabs_) slabs().give(slab, reports_per_slab * stride_);
}

void ReportPool::grow() {
  void* const slab = slabs().take(reports_per_slab * stride_);
  slabs_.push_back(slab);
  for (std::size_t i = 0; i < reports_per_slab; ++i) {
    free_.push_back(reinterpret_cast<core::Report*>(static_cast<std::byte*>(slab) + i * stride_));
  }
}

core::Report* ReportPool::next() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) grow();
  core::Report* const report = free_.back();
  free_.pop_back();
  return report;
}

void ReportPool::give_back(core::Report* report) {
  const std::lock_guard lock(mutex_);
  free_.push_back(report);
}

std::shared_ptr<core::Report> ReportPool::take(const std::shared_ptr<ReportPool>& pool) {
  auto* const report = new (pool->next()) core::Report;
  report->per_source = reinterpret_cast<std::int64_t*>(report + 1);
  report->per_expert = report->per_source + pool->ranks_;
  for (int i = 0; i < pool->ranks_ + pool->local_experts_; ++i) report->per_source[i] = 0;
  return {report, [pool](core::Report* mine) { pool->give_back(mine); }};
}

}  // namespace sluice::cuda
