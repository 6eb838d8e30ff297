// Reports in pinned host memory, which kernels write and the host reads.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "core/report.h"

namespace sluice::cuda {

// Grows by slabs and never shrinks: a steady number of calls allocates nothing.
class ReportPool {
 public:
  // Each with room for R + L counts.
  ReportPool(int ranks, int local_experts);
  ~ReportPool();
  ReportPool(const ReportPool&) = delete;
  ReportPool& operator=(const ReportPool&) = delete;

  // Cleared; goes back when its last owner drops it.
  static std::shared_ptr<core::Report> take(const std::shared_ptr<ReportPool>& pool);

 private:
  core::Report* next();
  void give_back(core::Report* report);
  void grow();

  int ranks_;
  int local_experts_;
  std::size_t stride_;
  std::mutex mutex_;
  std::vector<core::Report*> free_;
  std::vector<void*> slabs_;
};

}  // namespace sluice::cuda
