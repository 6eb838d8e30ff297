#include "cli/bench_rank.h"

#include <fmt/format.h>
#include <sluice/sluice.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "cli/barrier.h"
#include "cli/bench_copy.h"
#include "cli/bench_copy_gpu.h"
#include "cli/bench_rows.h"
#include "cli/engine_views.h"
#include "cli/exchange.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHeaderBytes = 4096;

struct SharedHeader {
  SharedBarrier barrier;
  std::atomic<std::uint32_t> wrong;
  std::array<std::atomic<std::uint32_t>, limits::ranks_per_node> meetings;  // to which a rank has come
};
static_assert(sizeof(SharedHeader) <= kHeaderBytes);

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

std::int64_t copy_rows(const BenchCase& bench) { return bench.bytes_recv_max() / bench.row_bytes(); }

// Rows of the yardstick: those of the operation, rounded up to what a streaming store can take.
std::size_t copy_row_bytes(const BenchCase& bench) {
  return static_cast<std::size_t>((bench.row_bytes() + 15) / 16 * 16);
}

class BenchRank {
 public:
  BenchRank(const BenchCase& bench, RankContext& context)
      : bench_(bench),
        context_(context),
        header_(*reinterpret_cast<SharedHeader*>(context.shared)),
        comm_(context.group, options_of(bench)),
        exchange_(bench, context.rank) {}

  RankTimes run() {
    times_.workers =
        bench_.flags.num_sms > 0 ? std::min(bench_.flags.num_sms, comm_.num_sms()) : comm_.num_sms();
    times_.nodes = comm_.nodes();
    times_.engine = comm_.engine();
    if (on_gpu()) times_.gpu = this_gpu();
    prepare();
    agree_on_values();
    if (header_.wrong.load() != 0) return times_;  // another rank says why
    measure();
    return times_;
  }

 private:
  // The values, and whatever the measured call needs.
  void prepare() {
    args_ = for_engine(comm_, exchange_.dispatch_args());
    DispatchResult sent = comm_.dispatch(args_);
    sent.ready.wait();
    if (bench_.op == Op::dispatch) {
      wrong_ = check_dispatch(bench_, context_.rank, on_host(comm_, sent));
      if (!bench_.flags.cached) return;
      args_.expert_ids = {};
      args_.route = sent.route;
      sent = {};  // its rows would only fill the arena
      sent = comm_.dispatch(args_);
      sent.ready.wait();
      if (wrong_.empty()) wrong_ = check_dispatch(bench_, context_.rank, on_host(comm_, sent));
      return;
    }
    back_ = exchange_.combine_args(comm_, sent);
    sent = {};
    CombineResult home = comm_.combine(back_);
    home.ready.wait();
    wrong_ = check_combine(bench_, context_.rank, on_host(comm_, home));
  }

  void agree_on_values() {
    if (!wrong_.empty()) header_.wrong.fetch_add(1);
    meet();
    if (!wrong_.empty()) {
      throw LaunchError(
          {"WrongValues",
           fmt::format("{} on rank {} of {}: {}", name_of(bench_.op), context_.rank, bench_.ranks, wrong_),
           context_.rank});
    }
  }

  void meet() {
    const bool cores = static_cast<unsigned>(bench_.ranks) <= std::thread::hardware_concurrency();
    header_.meetings[context_.rank].fetch_add(1);
    const Met met = header_.barrier.wait(bench_.ranks, cores ? WaitFor::spin : WaitFor::yield,
                                         std::chrono::milliseconds(bench_.flags.common.deadline_ms));
    if (met == Met::late) throw PeerError(absent(), context_.rank);
    if (met == Met::abandoned)
      throw LaunchError({"PeerError", "another rank has failed; its own message says why", context_.rank, true});
  }

  // Who has not come to the meeting at which this rank is.
  std::string absent() const {
    std::vector<int> who;
    for (int r = 0; r < bench_.ranks; ++r) {
      if (header_.meetings[r].load() < header_.meetings[context_.rank].load()) who.push_back(r);
    }
    return fmt::format("{} on rank {} of {}: rank{} {} did not come to the barrier within --deadline-ms {}",
                       name_of(bench_.op), context_.rank, bench_.ranks, who.size() > 1 ? "s" : "",
                       fmt::join(who, ", "), bench_.flags.common.deadline_ms);
  }

  bool on_gpu() const { return memory_kind(comm_) == MemoryKind::device; }

  std::unique_ptr<Yardstick> make_yardstick(Buffer& home) {
    const bool combine = bench_.op == Op::combine;
    if (!on_gpu()) return std::make_unique<CopyTeam>(copy_work(home), combine, times_.workers);
    return make_gpu_yardstick(context_.group, {.combine = combine,
                                               .one_process = context_.launch == Launch::threads,
                                               .row_bytes = copy_row_bytes(bench_),
                                               .rows = copy_rows(bench_),
                                               .tokens = bench_.tokens,
                                               .blocks = times_.workers});
  }

  CopyWork copy_work(Buffer& home) {
    CopyWork work;
    const bool combine = bench_.op == Op::combine;
    work.row_bytes = copy_row_bytes(bench_);
    work.rows = copy_rows(bench_);
    work.windows = {context_.shared + kHeaderBytes,
                    copy_window_bytes(combine, work.rows, work.row_bytes, bench_.ranks), bench_.ranks};
    work.rank = context_.rank;
    work.tokens = bench_.tokens;
    work.own = home.data();
    work.home = home.data();
    if (work.windows.window_bytes > 0)
      std::memset(work.windows.of(context_.rank), 1, work.windows.window_bytes);
    return work;
  }

  void measure() {
    Buffer home(static_cast<std::size_t>(bench_.tokens) * copy_row_bytes(bench_));
    const auto yardstick = make_yardstick(home);
    const std::vector<CopyForm> forms = yardstick->forms();
    times_.copy_us.resize(forms.size());
    for (int i = -bench_.flags.warmup; i < bench_.flags.iters; ++i) {
      meet();
      const auto [op_us, host_us] = measure_op();
      for (std::size_t f = 0; f < forms.size(); ++f) {
        const double copy_us = measure_copy(*yardstick, forms[f]);
        if (i >= 0) times_.copy_us[f].push_back(copy_us);
      }
      if (i < 0) continue;
      times_.op_us.push_back(op_us);
      times_.host_us.push_back(host_us);
    }
    meet();
  }

  std::pair<double, double> measure_op() {
    const auto begin = Clock::now();
    if (bench_.op == Op::dispatch) {
      const DispatchResult result = comm_.dispatch(args_);
      const auto returned = Clock::now();
      result.ready.wait();
      return {microseconds(begin, Clock::now()), microseconds(begin, returned)};
    }
    const CombineResult result = comm_.combine(back_);
    const auto returned = Clock::now();
    result.ready.wait();
    return {microseconds(begin, Clock::now()), microseconds(begin, returned)};
  }

  double measure_copy(Yardstick& yardstick, CopyForm form) {
    yardstick.prepare(form);
    meet();
    const auto begin = Clock::now();
    yardstick.run();
    return microseconds(begin, Clock::now());
  }

  const BenchCase& bench_;
  RankContext& context_;
  SharedHeader& header_;
  Communicator comm_;
  Exchange exchange_;
  DispatchArgs args_;
  CombineArgs back_;
  std::string wrong_;
  RankTimes times_;
};

}  // namespace

std::size_t bench_shared_bytes(const BenchCase& bench) {
  if (bench.flags.common.engine == "cuda") return kHeaderBytes;  // the windows lie on the GPU
  const std::size_t window =
      copy_window_bytes(bench.op == Op::combine, copy_rows(bench), copy_row_bytes(bench), bench.ranks);
  return kHeaderBytes + window * static_cast<std::size_t>(bench.ranks);
}

RankTimes run_bench_rank(const BenchCase& bench, RankContext& context) {
  try {
    take_gpu(bench.flags.common, context);
    BenchRank rank(bench, context);
    return rank.run();
  } catch (...) {
    reinterpret_cast<SharedHeader*>(context.shared)->barrier.abandon();
    throw;
  }
}

}  // namespace sluice::cli
