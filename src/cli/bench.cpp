// `sluice bench`: times of dispatch and combine beside a plain copy of the same bytes.
#include <fmt/format.h>
#include <sluice/sluice.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/bench_case.h"
#include "cli/bench_rank.h"
#include "cli/json.h"
#include "cli/machine.h"
#include "cli/say.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

// What came of one measurement.
struct BenchResult {
  BenchCase bench;
  RankTimes first;            // rank 0's workers, nodes and engine
  std::vector<double> op_us;  // per iteration the slowest rank's
  std::vector<double> host_us;
  double copy_us = 0;  // of the fastest form
};

// The smallest value that at least `share` of all do not exceed.
double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto at = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[at == 0 ? 0 : at - 1];
}

void keep_slowest(std::vector<double>& slowest, const std::vector<double>& times) {
  slowest.resize(times.size(), 0.0);
  for (std::size_t i = 0; i < times.size(); ++i) slowest[i] = std::max(slowest[i], times[i]);
}

Json pack(const RankTimes& times) {
  return {{"op_us", times.op_us},     {"host_us", times.host_us}, {"copy_us", times.copy_us},
          {"workers", times.workers}, {"nodes", times.nodes},     {"engine", times.engine},
          {"gpu", times.gpu.name},    {"gpus", times.gpu.count},  {"driver", times.gpu.driver},
          {"cuda", times.gpu.cuda}};
}

RankTimes unpack(const std::string& bytes) {
  const Json object = Json::from_cbor(bytes);
  return {object.at("op_us"),
          object.at("host_us"),
          object.at("copy_us"),
          object.at("workers"),
          object.at("nodes"),
          object.at("engine"),
          {object.at("gpu"), object.at("gpus"), object.at("driver"), object.at("cuda")}};
}

// The library names its options; here they are flags.
Failure in_flags(Failure failure) {
  constexpr std::pair<const char*, const char*> cures[] = {
      {"lower max_tokens, channels, capacity or arena_bytes",
       "lower --tokens, --hidden or --capacity, or take fewer --ranks"},
      {"lower max_tokens, or give a capacity", "lower --tokens, or give a --capacity"}};
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
  std::vector<std::vector<double>> copy_us;
  for (const auto& bytes : results) {
    const RankTimes times = unpack(bytes);
    keep_slowest(result.op_us, times.op_us);
    keep_slowest(result.host_us, times.host_us);
    copy_us.resize(times.copy_us.size());
    for (std::size_t f = 0; f < copy_us.size(); ++f) keep_slowest(copy_us[f], times.copy_us[f]);
    if (&bytes == &results.front()) result.first = times;
  }
  for (const auto& form : copy_us) {
    const double us = percentile(form, 0.5);
    if (&form == &copy_us.front() || us < result.copy_us) result.copy_us = us;
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

Json bench_record(const BenchResult& result, Launch launch) {
  Json record = make_record("bench");
  describe_case(record, result, launch);
  const BenchCase& bench = result.bench;
  const double p50 = percentile(result.op_us, 0.5);
  record["p10_us"] = percentile(result.op_us, 0.1);
  record["p50_us"] = p50;
  record["p90_us"] = percentile(result.op_us, 0.9);
  record["host_us"] = percentile(result.host_us, 0.5);
  record["bytes_recv_max"] = bench.bytes_recv_max();
  record["copy_us"] = result.copy_us;
  record["copy_ratio"] = bench.bytes_recv_max() > 0 ? Json(result.copy_us / p50) : Json(nullptr);
  record["wire_gbs"] = gigabytes_per_second(bench.wire_bytes_max(), p50);
  record["logical_gbs"] = gigabytes_per_second(bench.logical_bytes_max(), p50);
  for (const char* name : {"overlap", "late", "offload", "wait_us", "move_us"}) record[name] = nullptr;
  record["ok"] = true;
  record["machine"] = machine_record(result.first.gpu);
  return record;
}

void print_heading(const BenchFlags& flags, int ranks, const Json& machine) {
  fmt::print("{} ranks as {}, {}, {} cores; rows of {} {}, {} layout, {} counts{}{}, routing {}\n", ranks,
             name_of(flags.common.launch), machine["cpu"].get<std::string>(), machine["cores"].get<int>(),
             flags.shape.hidden, name_of(flags.shape.dtype), name_of(flags.shape.layout),
             name_of(flags.shape.counts), flags.cached ? ", cached" : "", flags.quantise ? ", quantised" : "",
             flags.shape.routing);
  fmt::print("values checked on all ranks; times in us over {} iterations, slowest rank\n\n", flags.iters);
  fmt::print("{:<9} {:>7} {:>8} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6} {:>9}\n", "op", "tokens",
             "experts", "topk", "p10", "p50", "p90", "host", "copy", "ratio", "wire GB/s");
}

void print_row(const Json& record) {
  const std::string ratio =
      record["copy_ratio"].is_null() ? "-" : fmt::format("{:.2f}", record["copy_ratio"].get<double>());
  const auto us = [&](const char* name) { return record[name].get<double>(); };
  fmt::print("{:<9} {:>7} {:>8} {:>5} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>6} {:>9.2f}\n",
             record["op"].get<std::string>(), record["tokens"].get<std::int64_t>(),
             record["experts"].get<int>(), record["topk"].get<int>(), us("p10_us"), us("p50_us"),
             us("p90_us"), us("host_us"), us("copy_us"), ratio, us("wire_gbs"));
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
  Launcher launcher(flags.common.launch, flags.common.ranks, flags.common.default_ranks);
  const bool progress = isatty(STDERR_FILENO) != 0 && launcher.prints();
  bool heading = launcher.prints() && !flags.common.json;
  for (const std::int64_t tokens : flags.shape.tokens) {
    for (const Op op : ops) {
      const BenchCase bench = make_case(flags, op, launcher.ranks(), tokens);
      if (progress) say("\r\033[K{} of {} tokens ...", name_of(op), tokens);
      const BenchResult result = measure(launcher, bench);
      if (progress) say("\r\033[K");
      if (!launcher.prints()) continue;
      const Json record = bench_record(result, launcher.launch());
      if (heading) print_heading(flags, launcher.ranks(), record["machine"]);
      heading = false;
      flags.common.json ? print_line(record) : print_row(record);
    }
  }
  return kDone;
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
