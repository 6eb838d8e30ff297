#include "doctor/recorded_rank.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <random>
#include <stdexcept>
#include <thread>

#include <sluice/sluice.h>

namespace sluice::doctor::testing {
namespace {

constexpr int iterations = 40;

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Of processor time, as real work would.
void compute(double us) {
  static std::atomic<double> sink{0};
  double x = 1;
  for (const std::int64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + static_cast<std::int64_t>(us * 1000);
       clock_ns(CLOCK_THREAD_CPUTIME_ID) < end;) {
    for (int i = 0; i < 200; ++i) x = x * 1.0000001 + 0.5;
  }
  sink = x;
}

void sleep_us(int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

// Memory that can be evicted: a file of its own, mapped.
class MappedRows {
 public:
  MappedRows(const std::filesystem::path& path, std::size_t bytes) : bytes_(bytes) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("cannot make " + path.string());
    base_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (base_ == MAP_FAILED) throw std::runtime_error("cannot map " + path.string());
    std::memset(base_, 0, bytes);
    ::fsync(file_);
  }
  MappedRows(const MappedRows&) = delete;
  MappedRows& operator=(const MappedRows&) = delete;
  ~MappedRows() {
    ::munmap(base_, bytes_);
    ::close(file_);
  }
  void evict() {
    ::madvise(base_, bytes_, MADV_DONTNEED);
    ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
    ::posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM);  // and no reading ahead
    ::madvise(base_, bytes_, MADV_RANDOM);
  }
  void* data() const { return base_; }

 private:
  std::size_t bytes_;
  int file_ = -1;
  void* base_ = nullptr;
};

class Copier {
 public:
  explicit Copier(std::int64_t bytes) : from_(static_cast<std::size_t>(bytes), 1), to_(from_.size()) {}
  void copy() {
    const std::int64_t begun = clock_ns(CLOCK_MONOTONIC);
    std::memcpy(to_.data(), from_.data(), from_.size());
    copies_.push_back({begun, clock_ns(CLOCK_MONOTONIC), static_cast<std::int64_t>(from_.size())});
  }
  void write(const std::filesystem::path& path) const {
    std::ofstream file(path);
    for (const CopyTrace& copy : copies_) file << copy.begun_ns << " " << copy.end_ns << " " << copy.bytes << "\n";
  }

 private:
  std::vector<char> from_, to_;
  std::vector<CopyTrace> copies_;
};

class Rank {
 public:
  Rank(Group group, const Run& run, const std::filesystem::path& folder)
      : run_(run), rank_(group.rank()), culprit_(rank_ == run.culprit), folder_(folder),
        tokens_(culprit_ && run.cause_kind == Cause::more_tokens ? static_cast<std::int64_t>(run.share * static_cast<double>(run.tokens)) : run.tokens),
        random_(run.seed * 1000u + static_cast<unsigned>(rank_)),
        rows_(static_cast<std::size_t>(tokens_ * run.hidden) * 2), ids_(static_cast<std::size_t>(tokens_ * run.topk)),
        mapped_(folder / ("rows." + std::to_string(rank_)), rows_.size()), copier_(std::max<std::int64_t>(run.copy_bytes, 1)),
        comm_(group, options(run, folder)) {}

  void play() {
    for (int i = 0; i < iterations; ++i) iterate(i);
    copier_.write(folder_ / copies_name(rank_));
  }

 private:
  static CommunicatorOptions options(const Run& run, const std::filesystem::path& folder) {
    const std::int64_t most = run.cause_kind == Cause::more_tokens ? static_cast<std::int64_t>(run.share * static_cast<double>(run.tokens)) : run.tokens;
    return {.max_tokens = most, .experts = run.experts, .hidden = run.hidden, .topk = run.topk, .layout = run.layout,
            .deadline_ms = 60'000, .workers = 1, .trace_operations = 64, .trace_dir = folder.string()};
  }

  // Different experts for each token; with hot experts the culprit's first.
  void choose() {
    const int mine = run_.experts / run_.ranks;
    std::uniform_int_distribution<int> any(0, run_.experts - 1), hot(run_.culprit * mine, run_.culprit * mine + mine - 1);
    std::bernoulli_distribution is_hot(run_.cause_kind == Cause::hot_experts ? run_.share : 0);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      std::int32_t* const chosen = ids_.data() + t * run_.topk;
      for (int k = 0; k < run_.topk; ++k) {
        do chosen[k] = is_hot(random_) ? hot(random_) : any(random_);
        while (std::count(chosen, chosen + k, chosen[k]) > 0);
      }
    }
  }

  void cause(bool combine, bool now) {
    compute(run_.work_us);
    if (!culprit_ || !now || !(combine ? run_.before_combine : run_.before_dispatch)) return;
    if (run_.cause_kind == Cause::computes) compute(run_.delay_us);
    if (run_.cause_kind == Cause::sleeps) sleep_us(run_.delay_us);
    if (run_.cause_kind == Cause::blocks) std::async(std::launch::async, [&] { sleep_us(run_.delay_us); }).wait();
    if (run_.cause_kind == Cause::copies_first) copier_.copy();
    if (run_.cause_kind == Cause::copies_beside) beside_ = std::async(std::launch::async, [&] { copier_.copy(); });
  }

  void iterate(int i) {
    const bool now = i % run_.every == run_.every - 1;
    choose();
    cause(false, now);
    const DataType bf16 = DataType::bf16;
    const bool evicted = culprit_ && run_.cause_kind == Cause::evicted_rows;
    DispatchResult sent = comm_.dispatch({.rows = {evicted ? mapped_.data() : rows_.data(), bf16, tokens_, run_.hidden},
                                          .expert_ids = {ids_.data(), DataType::int32, tokens_, run_.topk}, .layout = run_.layout});
    sent.ready.wait();
    if (beside_.valid()) beside_.wait();
    if (evicted && (i + 1) % run_.every == run_.every - 1) mapped_.evict();
    if (run_.row_us > 0) compute(run_.row_us * static_cast<double>(sent.host.rows));
    cause(true, now);
    CombineResult home = comm_.combine({.rows = sent.rows, .route = sent.route});
    home.ready.wait();
    home.inputs_free.wait();
    if (beside_.valid()) beside_.wait();
  }

  const Run& run_;
  int rank_;
  bool culprit_;
  std::filesystem::path folder_;
  std::int64_t tokens_;
  std::mt19937 random_;
  std::vector<char> rows_;
  std::vector<std::int32_t> ids_;
  MappedRows mapped_;
  Copier copier_;
  std::future<void> beside_;
  Communicator comm_;
};

// Of the threads that it makes, too.
void stay_on_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

std::string copies_name(int rank) { return "copies." + std::to_string(rank); }

void play_rank(Group group, const Run& run, const std::filesystem::path& folder) {
  if (run.cause_kind == Cause::copies_beside) stay_on_core(group.rank() == run.culprit ? 0 : 1);
  Rank(std::move(group), run, folder).play();
}

}  // namespace sluice::doctor::testing
