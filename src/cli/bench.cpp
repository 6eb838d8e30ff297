// `sluice bench`: times of dispatch and combine beside a plain copy of the same bytes.
#include <fmt/format.h>
#include <sluice/sluice.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/bench_case.h"
#include "cli/bench_rank.h"
#include "cli/bench_waits.h"
#include "cli/json.h"
#include "cli/machine.h"
#include "cli/percentile.h"
#include "cli/say.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

// What came of one measurement.
struct BenchResult {
  BenchCase bench;
  RankTimes first;             // rank 0's workers, nodes and engine
  std::vector<Series> series;  // by start; per iteration the slowest rank's
  std::vector<std::vector<double>> wait_for_us;  // traced: by who waits, and for whom
};

void keep_slowest(std::vector<double>& slowest, const std::vector<double>& times) {
  slowest.resize(std::max(slowest.size(), times.size()), 0.0);
  for (std::size_t i = 0; i < times.size(); ++i) slowest[i] = std::max(slowest[i], times[i]);
}

void keep_slowest(Series& slowest, const Series& times) {
  keep_slowest(slowest.op_us, times.op_us);
  keep_slowest(slowest.host_us, times.host_us);
  keep_slowest(slowest.gpu_us, times.gpu_us);
  keep_slowest(slowest.copy_gpu_us, times.copy_gpu_us);
  keep_slowest(slowest.gemm_us, times.gemm_us);
  keep_slowest(slowest.gemm_alone_us, times.gemm_alone_us);
  keep_slowest(slowest.wait_us, times.wait_us);
  keep_slowest(slowest.move_us, times.move_us);
  slowest.copy_us.resize(times.copy_us.size());
  for (std::size_t f = 0; f < times.copy_us.size(); ++f) keep_slowest(slowest.copy_us[f], times.copy_us[f]);
}

// Of the form of the copy that is the fastest.
double copy_p50(const Series& times) {
  std::vector<double> forms;
  for (const auto& form : times.copy_us) forms.push_back(percentile(form, 0.5));
  return percentile(forms, 0);
}

Json pack(const RankTimes& times) {
  Json series = Json::array();
  for (const Series& s : times.series)
    series.push_back({s.op_us, s.host_us, s.copy_us, s.gpu_us, s.copy_gpu_us, s.gemm_us, s.gemm_alone_us, s.wait_us, s.move_us});
  return {{"series", series},        {"wait_for", times.wait_for_us}, {"gemm_sms", times.gemm_sms}, {"workers", times.workers},
          {"nodes", times.nodes},    {"engine", times.engine},     {"gpu", times.gpu.name},
          {"gpus", times.gpu.count}, {"driver", times.gpu.driver}, {"cuda", times.gpu.cuda}};
}

RankTimes unpack(const std::string& bytes) {
  const Json object = Json::from_cbor(bytes);
  RankTimes times;
  for (const Json& s : object.at("series"))
    times.series.push_back({s.at(0), s.at(1), s.at(2), s.at(3), s.at(4), s.at(5), s.at(6), s.at(7), s.at(8)});
  times.wait_for_us = object.at("wait_for").get<std::vector<double>>();
  times.gemm_sms = object.at("gemm_sms");
  times.workers = object.at("workers");
  times.nodes = object.at("nodes");
  times.engine = object.at("engine");
  times.gpu.name = object.at("gpu");
  times.gpu.count = object.at("gpus");
  times.gpu.driver = object.at("driver");
  times.gpu.cuda = object.at("cuda");
  return times;
}

// The library names its options; here they are flags.
Failure in_flags(Failure failure) {
  constexpr std::pair<const char*, const char*> cures[] = {
      {"lower max_tokens, channels, capacity or arena_bytes",
       "lower --tokens, --hidden or --capacity, or take fewer --ranks"},
      {"lower max_tokens, or give a capacity", "lower --tokens, or give a --capacity"},
      {"raise the capacity, or leave out what is too much by on_overflow = OnOverflow::drop", "give a larger --capacity"},
      // What a peer adds, who does not know whether there was a capacity.
      {"; without a capacity the rows take what the arena has free: make the communicator for this hidden, layout and alignment, "
       "or raise arena_bytes, or drop earlier results", ""}};
  for (const auto& [options, flags] : cures) {
    const auto at = failure.message.find(options);
    if (at != std::string::npos) failure.message.replace(at, std::string_view(options).size(), flags);
  }
  return failure;
}

std::vector<std::string> run_ranks(Launcher& launcher, const BenchCase& bench) {
  try {
    return launcher.run(
        [&](RankContext& context) {
          const auto packed = Json::to_cbor(pack(run_bench_rank(bench, context)));
          return std::string(packed.begin(), packed.end());
        },
        bench_shared_bytes(bench));
  } catch (...) {
    throw LaunchError(in_flags(current_failure(-1)));
  }
}

BenchResult measure(Launcher& launcher, const BenchCase& bench) {
  const auto results = run_ranks(launcher, bench);
  BenchResult result;
  result.bench = bench;
  for (const auto& bytes : results) {
    const RankTimes times = unpack(bytes);
    result.series.resize(times.series.size());
    for (std::size_t s = 0; s < times.series.size(); ++s) keep_slowest(result.series[s], times.series[s]);
    if (!times.wait_for_us.empty()) result.wait_for_us.push_back(times.wait_for_us);
    if (&bytes == &results.front()) result.first = times;
  }
  return result;
}

Json machine_record(const Gpu& gpu) {
  static const Machine machine = this_machine();
  const bool has_gpu = gpu.count > 0;
  Json record;
  record["cpu"] = machine.cpu;
  record["cores"] = machine.cores;
  record["gpu"] = has_gpu ? Json(gpu.name) : Json(nullptr);
  record["gpus"] = has_gpu ? Json(gpu.count) : Json(nullptr);
  record["driver"] = has_gpu ? Json(gpu.driver) : Json(nullptr);
  record["cuda"] = has_gpu ? Json(gpu.cuda) : Json(nullptr);
  record["os"] = machine.os;
  return record;
}

double gigabytes_per_second(std::int64_t bytes, double us) {
  return us > 0 ? static_cast<double>(bytes) / us * 1e-3 : 0;
}

void describe_case(Json& record, const BenchResult& result, Launch launch) {
  const BenchCase& bench = result.bench;
  const BenchFlags& flags = bench.flags;
  record["sys"] = "sluice";
  record["engine"] = result.first.engine;
  record["launch"] = name_of(launch);
  record["op"] = name_of(bench.op);
  record["ranks"] = bench.ranks;
  record["nodes"] = result.first.nodes;
  record["tokens"] = bench.tokens;
  record["hidden"] = flags.shape.hidden;
  record["topk"] = bench.topk;
  record["experts"] = bench.experts;
  record["dtype"] = name_of(bench.op == Op::dispatch ? flags.shape.dtype : bench.combine_type());
  record["layout"] = name_of(flags.shape.layout);
  record["counts"] = name_of(flags.shape.counts);
  record["cached"] = flags.cached;
  record["graph"] = flags.graph;
  record["quantise"] = flags.quantise && bench.op == Op::dispatch;
  record["routing"] = flags.shape.routing;
  record["seed"] = flags.common.seed;
  record["iters"] = flags.iters;
  const int gpus = result.first.gpu.count;
  record["workers"] = gpus > 0 ? Json(nullptr) : Json(result.first.workers);
  record["method"] = flags.method;
  record["num_sms"] = result.first.workers;
  const int ranks_per_gpu = gpus > 0 ? (bench.ranks + gpus - 1) / gpus : 0;
  record["gpu_sms"] = gpus > 0 ? Json(result.first.workers * ranks_per_gpu) : Json(nullptr);
}

Json overlap_record(const BenchResult& result, Start start) {
  if (start == Start::alone) return nullptr;
  const Series& alone = result.series.front();
  const Series& times = result.series[static_cast<std::size_t>(start)];
  const double alone_us = percentile(alone.op_us, 0.5), copy_alone_us = copy_p50(alone);
  Json record;
  record["gemm"] = text_of(*result.bench.flags.overlap);
  record["start"] = start == Start::op ? "op" : "gemm";
  record["gemm_sms"] = start == Start::op ? Json(nullptr) : Json(result.first.gemm_sms);
  record["alone_us"] = alone_us;
  record["copy_alone_us"] = copy_alone_us;
  record["op_loss"] = percentile(times.op_us, 0.5) / alone_us - 1;
  record["copy_loss"] = copy_p50(times) / copy_alone_us - 1;
  record["gemm_us"] = percentile(times.gemm_alone_us, 0.5);
  record["gemm_overlapped_us"] = percentile(times.gemm_us, 0.5);
  return record;
}

// Null where nothing was traced.
void describe_waits(Json& record, const BenchResult& result) {
  const BenchFlags& flags = result.bench.flags;
  const Series& times = result.series.front();
  record["late"] = flags.late ? Json(text_of(*flags.late, flags.side())) : Json(nullptr);
  record["offload"] = nullptr;
  for (const char* name : {"wait_us", "move_us", "wait_for"}) record[name] = nullptr;
  if (times.wait_us.size() != times.op_us.size()) return;
  const auto median = std::find(times.op_us.begin(), times.op_us.end(), percentile(times.op_us, 0.5)) - times.op_us.begin();
  record["wait_us"] = times.wait_us[static_cast<std::size_t>(median)];
  record["move_us"] = times.move_us[static_cast<std::size_t>(median)];
  record["wait_for"] = result.wait_for_us;
}

Json bench_record(const BenchResult& result, Start start, Launch launch) {
  Json record = make_record("bench");
  describe_case(record, result, launch);
  const BenchCase& bench = result.bench;
  const Series& times = result.series[static_cast<std::size_t>(start)];
  const double p50 = percentile(times.op_us, 0.5), copy_us = copy_p50(times);
  record["p10_us"] = percentile(times.op_us, 0.1);
  record["p50_us"] = p50;
  record["p90_us"] = percentile(times.op_us, 0.9);
  record["host_us"] = percentile(times.host_us, 0.5);
  record["bytes_recv_max"] = bench.bytes_recv_max();
  record["copy_us"] = copy_us;
  record["copy_ratio"] = bench.bytes_recv_max() > 0 ? Json(copy_us / p50) : Json(nullptr);
  record["gpu_us"] = times.gpu_us.empty() ? Json(nullptr) : Json(percentile(times.gpu_us, 0.5));
  record["copy_gpu_us"] = times.copy_gpu_us.empty() ? Json(nullptr) : Json(percentile(times.copy_gpu_us, 0.5));
  record["wire_gbs"] = gigabytes_per_second(bench.wire_bytes_max(), p50);
  record["logical_gbs"] = gigabytes_per_second(bench.logical_bytes_max(), p50);
  record["overlap"] = overlap_record(result, start);
  describe_waits(record, result);
  record["ok"] = true;
  record["machine"] = machine_record(result.first.gpu);
  return record;
}

void print_heading(const BenchFlags& flags, int ranks, const Json& machine) {
  fmt::print("{}, {}, {}; rows of {} {}, {} layout, {} counts{}{}{}, routing {}\n",
             ranks_as(ranks, flags.common.launch), machine["cpu"].get<std::string>(),
             counted(machine["cores"].get<int>(), "core"), flags.shape.hidden, name_of(flags.shape.dtype), name_of(flags.shape.layout),
             name_of(flags.shape.counts), flags.cached ? ", cached" : "", flags.quantise ? ", quantised" : "",
             flags.graph ? ", replayed by a graph" : "", flags.shape.routing);
  fmt::print("values checked on all ranks; times in us over {}, slowest rank\n\n", counted(flags.iters, "iteration"));
  fmt::print("{:<9} {:>7} {:>8} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6} {:>9}\n", "op", "tokens",
             "experts", "topk", "p10", "p50", "p90", "host", "copy", "ratio", "wire GB/s");
}

void print_overlap(const Json& overlap) {
  const auto number = [&](const char* name) { return overlap[name].get<double>(); };
  const std::string sms =
      overlap["gemm_sms"].is_null() ? "all SMs" : fmt::format("{} SMs", overlap["gemm_sms"].get<int>());
  fmt::print(
      "  GEMMs of {} on {}, {} first: operation {:+.1f} %, copy {:+.1f} %, a GEMM {:.1f} us, alone {:.1f}\n",
      overlap["gemm"].get<std::string>(), sms, overlap["start"] == "op" ? "operation" : "GEMMs",
      100 * number("op_loss"), 100 * number("copy_loss"), number("gemm_overlapped_us"), number("gemm_us"));
}

void print_row(const Json& record) {
  const std::string ratio =
      record["copy_ratio"].is_null() ? "-" : fmt::format("{:.2f}", record["copy_ratio"].get<double>());
  const auto us = [&](const char* name) { return record[name].get<double>(); };
  fmt::print("{:<9} {:>7} {:>8} {:>5} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>6} {:>9.2f}\n",
             record["op"].get<std::string>(), record["tokens"].get<std::int64_t>(),
             record["experts"].get<int>(), record["topk"].get<int>(), us("p10_us"), us("p50_us"),
             us("p90_us"), us("host_us"), us("copy_us"), ratio, us("wire_gbs"));
  if (!record["gpu_us"].is_null())
    fmt::print("  on the GPU alone, starts together: {:.1f} us, copy {:.1f}\n", us("gpu_us"), us("copy_gpu_us"));
  if (!record["overlap"].is_null()) print_overlap(record["overlap"]);
  if (!record["wait_for"].is_null()) print_waits(record);
  std::fflush(stdout);
}

std::vector<Op> ops_of(const BenchFlags& flags) {
  std::vector<Op> ops;
  for (const auto& name : flags.ops) ops.push_back(name == "dispatch" ? Op::dispatch : Op::combine);
  for (const Op op : ops) require_legal_rows(flags, op);
  return ops;
}

int run_bench(const BenchFlags& flags) {
  const auto ops = ops_of(flags);
  require_legal_overlap(flags);
  require_legal_graph(flags);
  const auto starts = flags.overlap ? std::vector{Start::op, Start::gemm} : std::vector{Start::alone};
  Launcher launcher(flags.common.launch, flags.common.ranks, flags.common.default_ranks, flags.common.meeting_ms());
  require_legal_late(flags, launcher.ranks());
  const bool progress = isatty(STDERR_FILENO) != 0 && launcher.prints();
  bool heading = launcher.prints() && !flags.common.json;
  for (const std::int64_t tokens : flags.shape.tokens) {
    for (const Op op : ops) {
      const BenchCase bench = make_case(flags, op, launcher.ranks(), tokens);
      if (progress) say("\r\033[K{} of {} ...", name_of(op), counted(tokens, "token"));
      const BenchResult result = measure(launcher, bench);
      if (progress) say("\r\033[K");
      if (!launcher.prints()) continue;
      for (const Start start : starts) {
        const Json record = bench_record(result, start, launcher.launch());
        if (heading) print_heading(flags, launcher.ranks(), record["machine"]);
        heading = false;
        flags.common.json ? print_line(record) : print_row(record);
      }
    }
  }
  return exit_done;
}

}  // namespace

Command add_bench(CLI::App& program) {
  auto flags = std::make_shared<BenchFlags>();
  flags->common.launch = Launch::processes;
  CLI::App* app = program.add_subcommand(
      "bench",
      "Measure dispatch and combine beside a plain copy of the same bytes; values are checked first");
  add_bench_flags(*app, *flags);
  return {app, [flags] { return run_bench(*flags); }};
}

}  // namespace sluice::cli
