#include "cli/bench_rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <sluice/sluice.h>

#include "cli/barrier.h"
#include "cli/bench_copy.h"
#include "cli/bench_rows.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHeaderBytes = 4096;

struct SharedHeader {
  SharedBarrier barrier;
  std::atomic<std::uint32_t> wrong;
};
static_assert(sizeof(SharedHeader) <= kHeaderBytes);

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

std::int64_t copy_rows(const BenchCase& bench) { return bench.bytes_recv_max() / bench.row_bytes(); }

// Rows of the yardstick: those of the operation, rounded up to what a streaming store can take.
std::size_t copy_row_bytes(const BenchCase& bench) { return static_cast<std::size_t>((bench.row_bytes() + 15) / 16 * 16); }

// Aligned memory of this rank, touched.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(4096, (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096))) {
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_, 1, bytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

class BenchRank {
 public:
  BenchRank(const BenchCase& bench, RankContext& context)
      : bench_(bench), context_(context), header_(*reinterpret_cast<SharedHeader*>(context.shared)),
        comm_(context.group, options_of(bench)),
        rows_(static_cast<std::size_t>(bench.tokens * bench.flags.shape.hidden * size_of(bench.flags.shape.dtype))) {
    const std::int64_t hidden = bench.flags.shape.hidden;
    const std::int64_t bytes = hidden * size_of(bench.flags.shape.dtype);
    for (std::int64_t t = 0; t < bench.tokens; ++t) {
      fill_row(rows_.data() + t * bytes, bench.flags.shape.dtype, hidden, sent_key(bench, context.rank, t));
    }
    if (!bench.sends_scales()) return;
    for (std::int64_t t = 0; t < bench.tokens; ++t) {
      for (std::int64_t g = 0; g < bench.scale_groups(); ++g) scales_.push_back(static_cast<float>(t + 1) + static_cast<float>(g));
    }
  }

  RankTimes run() {
    times_.workers = bench_.flags.num_sms > 0 ? std::min(bench_.flags.num_sms, comm_.num_sms()) : comm_.num_sms();
    times_.nodes = comm_.nodes();
    times_.engine = comm_.engine();
    prepare();
    agree_on_values();
    if (header_.wrong.load() != 0) return times_;  // another rank says why
    measure();
    return times_;
  }

 private:
  DispatchArgs dispatch_args() const {
    const ShapeFlags& shape = bench_.flags.shape;
    const Decisions& mine = bench_.decisions[context_.rank];
    DispatchArgs args;
    args.rows = ConstTensorView(rows_.data(), shape.dtype, bench_.tokens, shape.hidden);
    if (bench_.sends_scales()) args.scales = ConstTensorView(scales_.data(), DataType::fp32, bench_.tokens, bench_.scale_groups());
    args.expert_ids = ConstTensorView(mine.ids.data(), DataType::int32, bench_.tokens, bench_.topk);
    args.weights = ConstTensorView(mine.weights.data(), DataType::fp32, bench_.tokens, bench_.topk);
    args.layout = shape.layout;
    args.counts = shape.counts;
    args.capacity = shape.capacity;
    args.alignment = shape.alignment;
    args.quantise = bench_.flags.quantise ? Quantise::e4m3 : Quantise::none;
    args.num_sms = bench_.flags.num_sms;
    return args;
  }

  // The values, and whatever the measured call needs.
  void prepare() {
    args_ = dispatch_args();
    DispatchResult sent = comm_.dispatch(args_);
    sent.ready.wait();
    if (bench_.op == Op::dispatch) {
      wrong_ = check_dispatch(bench_, context_.rank, sent);
      if (!bench_.flags.cached) return;
      args_.expert_ids = {};
      args_.route = sent.route;
      sent = {};  // its rows would only fill the arena
      sent = comm_.dispatch(args_);
      sent.ready.wait();
      if (wrong_.empty()) wrong_ = check_dispatch(bench_, context_.rank, sent);
      return;
    }
    prepare_combine(sent);
    CombineResult home = comm_.combine(back_);
    home.ready.wait();
    wrong_ = check_combine(bench_, context_.rank, home);
  }

  void prepare_combine(const DispatchResult& sent) {
    const bool fits = sent.rows.dtype == bench_.combine_type();
    const std::int64_t hidden = bench_.flags.shape.hidden;
    std::int64_t count = sent.rows.elements() / hidden;
    TensorView rows = sent.rows;
    if (!fits && count > 0) {
      rows = comm_.allocate(count, hidden * size_of(bench_.combine_type()), bench_.combine_type());
      if (sent.rows.dims == 3) {
        const auto owner = rows.owner;
        rows = TensorView(rows.data, rows.dtype, sent.rows.shape[0], sent.rows.shape[1], hidden);
        rows.owner = owner;
      }
    }
    rows.dtype = bench_.combine_type();
    fill_home_rows(bench_, arrivals(bench_, context_.rank, sent.rows.shape[1]), rows);
    back_.rows = rows;
    back_.route = sent.route;
    if (bench_.flags.shape.layout != Layout::packed) back_.weights = sent.weights;
    back_.num_sms = bench_.flags.num_sms;
  }

  void agree_on_values() {
    if (!wrong_.empty()) header_.wrong.fetch_add(1);
    meet();
    if (!wrong_.empty()) {
      throw LaunchError({"WrongValues", fmt::format("{} on rank {} of {}: {}", name_of(bench_.op), context_.rank, bench_.ranks, wrong_), context_.rank});
    }
  }

  void meet() {
    const bool cores = static_cast<unsigned>(bench_.ranks) <= std::thread::hardware_concurrency();
    header_.barrier.wait(bench_.ranks, cores ? WaitFor::spin : WaitFor::yield);
  }

  CopyWork copy_work(Buffer& home) {
    CopyWork work;
    const bool combine = bench_.op == Op::combine;
    work.row_bytes = copy_row_bytes(bench_);
    work.rows = copy_rows(bench_);
    work.windows = {context_.shared + kHeaderBytes, copy_window_bytes(combine, work.rows, work.row_bytes, bench_.ranks), bench_.ranks};
    work.rank = context_.rank;
    work.tokens = bench_.tokens;
    work.own = home.data();
    work.home = home.data();
    if (work.windows.window_bytes > 0) std::memset(work.windows.of(context_.rank), 1, work.windows.window_bytes);
    return work;
  }

  void measure() {
    Buffer home(static_cast<std::size_t>(bench_.tokens) * copy_row_bytes(bench_));
    CopyTeam team(copy_work(home), bench_.op == Op::combine, times_.workers);
    for (int i = -bench_.flags.warmup; i < bench_.flags.iters; ++i) {
      meet();
      const auto [op_us, host_us] = measure_op();
      const double stream_us = measure_copy(team, CopyForm::stream);
      const double library_us = measure_copy(team, CopyForm::library);
      if (i < 0) continue;
      times_.op_us.push_back(op_us);
      times_.host_us.push_back(host_us);
      times_.stream_us.push_back(stream_us);
      times_.library_us.push_back(library_us);
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

  double measure_copy(CopyTeam& team, CopyForm form) {
    team.prepare(form);
    meet();
    const auto begin = Clock::now();
    team.run();
    return microseconds(begin, Clock::now());
  }

  const BenchCase& bench_;
  RankContext& context_;
  SharedHeader& header_;
  Communicator comm_;
  Buffer rows_;
  std::vector<float> scales_;
  DispatchArgs args_;
  CombineArgs back_;
  std::string wrong_;
  RankTimes times_;
};

}  // namespace

std::size_t bench_shared_bytes(const BenchCase& bench) {
  const std::size_t window = copy_window_bytes(bench.op == Op::combine, copy_rows(bench), copy_row_bytes(bench), bench.ranks);
  return kHeaderBytes + window * static_cast<std::size_t>(bench.ranks);
}

RankTimes run_bench_rank(const BenchCase& bench, RankContext& context) {
  try {
    BenchRank rank(bench, context);
    return rank.run();
  } catch (...) {
    reinterpret_cast<SharedHeader*>(context.shared)->barrier.abandon();
    throw;
  }
}

}  // namespace sluice::cli
