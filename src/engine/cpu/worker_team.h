// The threads that serve a rank's kernels: the caller and its helpers.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice::cpu {

// Shared by the lanes of one rank. Helpers sleep between kernels. A lane that finds them busy with
// another lane's kernel does its work alone instead of waiting.
class WorkerTeam {
 public:
  explicit WorkerTeam(int size);  // the caller and size - 1 helpers
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;
  int size() const { return size_; }
  // Calls body(begin, end) on contiguous parts of [0, count), at most `workers` at once, each part by
  // one thread, and returns when all have ended; then throws what a part has thrown.
  void parallel(std::int64_t count, int workers, const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  void help(int index);
  void end_helpers();
  void run_part(int part);

  int size_;
  std::mutex busy_;
  std::vector<std::thread> helpers_;
  // Of the kernel that runs; written before `round_` moves.
  std::int64_t count_ = 0;
  int parts_ = 0;
  const std::function<void(std::int64_t, std::int64_t)>* body_ = nullptr;
  // What the first part that threw has thrown; read when all have ended.
  std::atomic<bool> threw_{false};
  std::exception_ptr thrown_;
  std::atomic<std::uint32_t> round_{0};
  std::atomic<std::uint32_t> left_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace sluice::cpu
