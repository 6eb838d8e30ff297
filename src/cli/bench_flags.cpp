// add_bench_flags of bench_case.h.
#include <fmt/format.h>
#include <sluice/limits.h>

#include <cstdint>
#include <string>

#include "cli/bench_case.h"
#include "cli/routing_model.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

void add_shape_flags(CLI::App& app, ShapeFlags& flags) {
  app.add_option("--tokens", flags.tokens,
                 "Tokens of each rank; several, separated by commas, give a line each")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{0}, limits::max_tokens))
      ->capture_default_str();
  app.add_option("--hidden", flags.hidden, "Elements of a row")
      ->check(CLI::Range(std::int64_t{1}, limits::row_bytes))
      ->capture_default_str();
  app.add_option("--topk", flags.topk, "Experts per token [the routing's, else 8]")
      ->check(CLI::Range(1, limits::topk));
  app.add_option("--experts", flags.experts, "Experts in all [the routing's, else 256]")
      ->check(CLI::Range(1, limits::experts));
  add_choice<DataType>(
      app, "--dtype", flags.dtype,
      {{"bf16", DataType::bf16},
       {"fp16", DataType::fp16},
       {"fp32", DataType::fp32},
       {"e4m3", DataType::e4m3}},
      "Element type; e4m3 travels with an FP32 scale per 128 elements and comes home as bf16 [bf16]");
  add_choice<Layout>(app, "--layout", flags.layout,
                     {{"packed", Layout::packed}, {"grouped", Layout::grouped}, {"padded", Layout::padded}},
                     "Layout of the result [packed]");
  add_choice<Counts>(app, "--counts", flags.counts, {{"exact", Counts::exact}, {"bounded", Counts::bounded}},
                     "Whether the call waits for the counts [exact]");
  app.add_option("--capacity", flags.capacity,
                 "Rows (padded: per expert) of a result; 0 = the most that may come [0; padded: as many as the fullest "
                 "expert gets]")
      ->check(CLI::Range(std::int64_t{0}, limits::elements));
  app.add_option("--alignment", flags.alignment, "Grouped: rows to which each expert's start is aligned")
      ->check(CLI::Range(std::int64_t{1}, limits::alignment))
      ->capture_default_str();
  app.add_option("--routing", flags.routing,
                 fmt::format("{}|FILE; S from 0 to 100; when a file has too few tokens, the first follow after the last",
                             fmt::join(routing_model_names(), "|")))
      ->capture_default_str();
}

// Flags of later versions: named, so that using one says so instead of being a riddle.
void add_later_flags(CLI::App& app) {
  for (const char* name : {"--offload", "--shared-link"}) {
    app.add_option_function<std::string>(
           name,
           [name](const std::string&) {
             throw CLI::ValidationError(std::string(name) + " does not exist yet in this version");
           },
           "Not yet")
        ->expected(0, 1)
        ->group("");
  }
}

void add_overlap(CLI::App& app, BenchFlags& flags) {
  app.add_option_function<std::string>(
         "--overlap",
         [&flags](const std::string& text) {
           flags.overlap = parse_gemm(text);
           if (flags.overlap) return;
           throw CLI::ValidationError(
               "--overlap " + text + " is neither gemm nor gemm:MxNxK with multiples of 8 from 512 to 32768");
         },
         "Measure beside GEMMs, started after and before: gemm[:MxNxK] [8192x4096x7168]; with --engine cuda "
         "only")
      ->type_name("gemm[:MxNxK]");
}

void add_late(CLI::App& app, BenchFlags& flags) {
  app.add_option_function<std::string>(
         "--late",
         [&flags](const std::string& text) {
           flags.late = parse_late(text);
           if (flags.late) return;
           throw CLI::ValidationError("--late " + text + " is not RANK:MS, a rank and the milliseconds, at most 60000, that it is late");
         },
         "In each measured iteration this rank makes its call that many milliseconds after the others; tells who waited for "
         "whom; CPU engine alone")
      ->type_name("RANK:MS");
  app.add_option_function<std::string>(
         "--late-side",
         [&flags](const std::string& text) { flags.late_side = text == "host" ? LateSide::host : LateSide::device; },
         "What makes it late: its thread sleeps, or its device works, which for the CPU engine is that thread, computing [host]")
      ->check(CLI::IsMember({"host", "device"}).description(""))
      ->type_name("host|device");
  app.add_option("--trace", flags.trace_dir,
                 "Folder for the traces of the ranks, for sluice trace; tells who waited for whom; CPU engine alone")
      ->type_name("DIR");
}

}  // namespace

void add_bench_flags(CLI::App& app, BenchFlags& flags) {
  add_common_flags(app, flags.common);
  add_shape_flags(app, flags.shape);
  app.add_option("--op", flags.ops, "Operations to measure, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"dispatch", "combine"}).description(""))
      ->type_name("dispatch|combine")
      ->capture_default_str();
  app.add_flag("--cached", flags.cached, "Dispatch with the reused route instead of the plain one");
  app.add_flag("--quantise", flags.quantise, "Dispatch quantises the rows to e4m3 on the way");
  app.add_flag("--graph", flags.graph, "Capture the call into a CUDA graph, and replay that in each iteration; CUDA engine alone");
  app.add_option("--num-sms", flags.num_sms, "SMs (CPU: workers) of each rank; 0 = the communicator's")
      ->check(CLI::Range(0, limits::num_sms))
      ->capture_default_str();
  app.add_option("--method", flags.method, "How bytes move")
      ->check(CLI::IsMember({"automatic"}).description(""))
      ->type_name("automatic")
      ->capture_default_str();
  app.add_option("--workers", flags.workers, "CPU engine: threads that serve a rank; 0 = cores / ranks")
      ->check(CLI::Range(0, limits::workers))
      ->capture_default_str();
  app.add_option("--iters", flags.iters, "Measured iterations")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--warmup", flags.warmup, "Iterations before")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  add_overlap(app, flags);
  add_late(app, flags);
  add_later_flags(app);
}

}  // namespace sluice::cli
