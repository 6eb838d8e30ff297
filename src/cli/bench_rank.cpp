#include "cli/bench_rank.h"

#include <fmt/format.h>
#include <sluice/sluice.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "cli/barrier.h"
#include "cli/bench_copy.h"
#include "cli/bench_copy_gpu.h"
#include "cli/bench_rows.h"
#include "cli/bench_waits.h"
#include "cli/engine_views.h"
#include "cli/exchange.h"
#include "cli/gemm.h"
#include "cli/gpu_stream.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t header_bytes = 4096;

struct SharedHeader {
  SharedBarrier barrier;
  std::atomic<std::uint32_t> wrong;
  std::array<std::atomic<std::uint32_t>, limits::ranks_per_node> meetings;  // to which a rank has come
};
static_assert(sizeof(SharedHeader) <= header_bytes);

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
    if (bench_.flags.overlap) prepare_gemms();
    if (on_gpu() && bench_.flags.shape.counts == Counts::bounded && !bench_.flags.overlap) prepare_stream();
    prepare();
    agree_on_values();
    if (header_.wrong.load() != 0) return times_;  // another rank says why
    measure();
    return times_;
  }

 private:
  // One rank of each GPU starts GEMMs. cuBLAS loads its kernels while no stream waits for a peer, behind
  // which that would have to wait.
  void prepare_gemms() {
    const auto gpus = context_.group.all_gather(std::as_bytes(std::span(times_.gpu.pci)));
    const auto& mine = gpus[static_cast<std::size_t>(context_.rank)];
    const auto first = std::find(gpus.begin(), gpus.end(), mine) - gpus.begin();
    const auto ranks_here = static_cast<int>(std::count(gpus.begin(), gpus.end(), mine));
    times_.gemm_sms = times_.gpu.sms - ranks_here * times_.workers;
    if (times_.gemm_sms < 1) {
      throw std::runtime_error(
          fmt::format("--overlap gemm on rank {} of {}: ranks x SMs = {} x {} leave none of this GPU's {} "
                      "SMs to GEMMs; lower --num-sms",
                      context_.rank, bench_.ranks, ranks_here, times_.workers, times_.gpu.sms));
    }
    meet();
    if (first == context_.rank) {
      gemms_ = make_gemms(*bench_.flags.overlap);
      for (const int sms : {0, times_.gemm_sms}) {
        gemms_->limit(sms);
        gemms_->start(1);
        gemms_->finish();
      }
    }
    meet();
  }

  // A call that waits for its counts cannot be queued behind a start that has not been given.
  void prepare_stream() {
    meet();
    stream_ = make_gpu_stream();
    meet();
  }

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
    auto copy = make_gpu_yardstick(context_.group, {.combine = combine,
                                               .one_process = context_.launch == Launch::threads,
                                               .row_bytes = copy_row_bytes(bench_),
                                               .rows = copy_rows(bench_),
                                               .tokens = bench_.tokens,
                                               .blocks = times_.workers});
    gpu_copy_ = copy.get();
    return copy;
  }

  CopyWork copy_work(Buffer& home) {
    CopyWork work;
    const bool combine = bench_.op == Op::combine;
    work.row_bytes = copy_row_bytes(bench_);
    work.rows = copy_rows(bench_);
    work.windows = {context_.shared + header_bytes,
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
    if (bench_.flags.graph) stream_->capture([&] { queue_op(); });
    Series none;
    none.copy_us.resize(yardstick->forms().size());
    const bool overlap = bench_.flags.overlap.has_value();
    const auto start_over = [&] { times_.series.assign(overlap ? 3 : 1, none); };
    start_over();
    // The warm-up tells how many GEMMs outlast an operation, so with GEMMs there is one.
    for (int i = -std::max(bench_.flags.warmup, overlap ? 2 : 0); i < bench_.flags.iters; ++i) {
      if (i == 0) start_over();
      for (const Start start : {Start::alone, Start::op, Start::gemm}) {
        const auto at = static_cast<std::size_t>(start);
        if (at < times_.series.size()) measure(*yardstick, i, start, times_.series[at]);
      }
      if (i < 0 && gemms_) gemms_at_once_ = enough_gemms();
    }
    meet();
    if (bench_.flags.traced()) tell_waits();
  }

  void tell_waits() {
    inputs_free_.wait();  // only then a combine has ended
    Waits waits = waits_of(comm_.trace(), bench_.flags.iters);
    times_.series.front().wait_us = std::move(waits.wait_us);
    times_.series.front().move_us = std::move(waits.move_us);
    times_.wait_for_us = std::move(waits.wait_for_us);
  }

  // One start of iteration `i`, which is negative for a warm-up.
  void measure(Yardstick& yardstick, int i, Start start, Series& series) {
    if (start != Start::alone) measure_gemms(start, series);
    begin(start);
    const std::optional<Late>& late = bench_.flags.late;
    if (late && late->rank == context_.rank && i >= 0) be_late(*late, bench_.flags.side());
    measure_op(start, series);
    if (start != Start::alone && gemms_) series.gemm_us.push_back(gemms_->finish());
    if (stream_) {
      const auto come = [&] { meet(); };
      series.gpu_us.push_back(stream_->time([&] { bench_.flags.graph ? stream_->replay() : queue_op(); }, come));
      series.copy_gpu_us.push_back(stream_->time([&] { gpu_copy_->queue(stream_->handle()); }, come));
    }
    const std::vector<CopyForm> forms = yardstick.forms();
    for (std::size_t f = 0; f < forms.size(); ++f) {
      yardstick.prepare(forms[f]);
      begin(start);
      const auto called = Clock::now();
      yardstick.run([&] { go_on(start); });
      series.copy_us[f].push_back(microseconds(called, Clock::now()));
      if (start != Start::alone && gemms_) gemms_->finish();
    }
  }

  void measure_gemms(Start start, Series& series) {
    meet();
    if (!gemms_) return;
    gemms_->limit(start == Start::gemm ? times_.gemm_sms : 0);
    gemms_->start(gemms_at_once_);
    series.gemm_alone_us.push_back(gemms_->finish());
  }

  // Everybody is here, and GEMMs that start first run: one has ended, and the next of them are timed.
  void begin(Start start) {
    meet();
    if (start != Start::gemm) return;
    if (gemms_) {
      gemms_->start(1);
      gemms_->start(gemms_at_once_);
      gemms_->await_turn();
    }
    meet();
  }

  // What is measured has been called.
  void go_on(Start start) {
    if (start == Start::op && gemms_) gemms_->start(gemms_at_once_);
  }

  // In the stream of the bench.
  void queue_op() {
    if (bench_.op == Op::dispatch) {
      DispatchArgs args = args_;
      args.run_on = RunOn::callers_stream;
      static_cast<void>(comm_.dispatch(args, stream_->handle()));
      return;
    }
    CombineArgs args = back_;
    args.run_on = RunOn::callers_stream;
    static_cast<void>(comm_.combine(args, stream_->handle()));
  }

  void measure_graph(Series& series) {
    const auto called = Clock::now();
    stream_->replay();
    const auto returned = Clock::now();
    stream_->wait();
    series.op_us.push_back(microseconds(called, Clock::now()));
    series.host_us.push_back(microseconds(called, returned));
  }

  void measure_op(Start start, Series& series) {
    if (bench_.flags.graph) return measure_graph(series);
    const auto called = Clock::now();
    const auto time = [&](const auto& result) {
      const auto returned = Clock::now();
      go_on(start);
      result.ready.wait();
      series.op_us.push_back(microseconds(called, Clock::now()));
      series.host_us.push_back(microseconds(called, returned));
    };
    if (bench_.op == Op::dispatch) return time(comm_.dispatch(args_));
    const CombineResult home = comm_.combine(back_);
    time(home);
    inputs_free_ = home.inputs_free;
  }

  // Each takes at least as long as alone, so these outlast what the last iteration has measured, by one.
  int enough_gemms() const {
    double longest = 0, gemm = std::numeric_limits<double>::max();
    for (const Series& series : times_.series) {
      longest = std::max(longest, series.op_us.back());
      for (const auto& form : series.copy_us) longest = std::max(longest, form.back());
      if (!series.gemm_alone_us.empty()) gemm = std::min(gemm, series.gemm_alone_us.back());
    }
    return std::max(2, 1 + static_cast<int>(std::ceil(longest / gemm)));
  }

  const BenchCase& bench_;
  RankContext& context_;
  SharedHeader& header_;
  std::unique_ptr<Gemms> gemms_;  // goes after comm_, for whose end peers may wait on the GPU
  int gemms_at_once_ = 2;
  std::unique_ptr<GpuStream> stream_;  // goes after comm_ too
  GpuYardstick* gpu_copy_ = nullptr;
  Communicator comm_;
  Exchange exchange_;
  DispatchArgs args_;
  CombineArgs back_;
  Event inputs_free_;  // of the last combine
  std::string wrong_;
  RankTimes times_;
};

}  // namespace

std::size_t bench_shared_bytes(const BenchCase& bench) {
  if (bench.flags.common.engine == "cuda") return header_bytes;  // the windows lie on the GPU
  const std::size_t window =
      copy_window_bytes(bench.op == Op::combine, copy_rows(bench), copy_row_bytes(bench), bench.ranks);
  return header_bytes + window * static_cast<std::size_t>(bench.ranks);
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
