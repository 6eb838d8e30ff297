#include "cli/bench_case.h"

#include <fmt/format.h>
#include <sluice/limits.h>
#include <unistd.h>

#include <algorithm>

#include "cli/routing_file.h"
#include "cli/routing_model.h"

namespace sluice::cli {
namespace {

std::vector<Decisions> decide(const ShapeFlags& shape, BenchCase& bench) {
  RoutingModel model;
  std::vector<Decisions> decisions;
  if (parse_routing_model(shape.routing, model)) {
    bench.experts = shape.experts > 0 ? shape.experts : natural_experts(model);
    bench.topk = shape.topk > 0 ? shape.topk : std::min(natural_topk(model), bench.experts);
    require_enough_experts(bench.experts, bench.topk);
    for (int r = 0; r < bench.ranks; ++r) {
      decisions.push_back(generate(model, bench.experts, bench.topk, bench.tokens, bench.flags.common.seed,
                                   static_cast<std::uint64_t>(r)));
    }
    return decisions;
  }
  const bool file_there = access(shape.routing.c_str(), F_OK) == 0;
  if (const std::string wrong = wrong_skew(shape.routing); !wrong.empty() && !file_there)
    throw UsageError(fmt::format("--routing {}: {}", shape.routing, wrong));
  if (shape.routing.find_first_of("./") == std::string::npos && !file_there) {
    const std::string near = nearest(shape.routing, routing_model_names("1"));
    throw UsageError(fmt::format("--routing {} is none of {}, nor a file (write ./{} if it is one){}",
                                 shape.routing, fmt::join(routing_model_names(), ", "), shape.routing,
                                 near.empty() ? "" : "; did you mean --routing " + near + "?"));
  }
  const Decisions all = read_routing_file(shape.routing);
  const RecordedShape recorded = shape_of_recorded(all, shape.routing, shape.experts, shape.topk);
  bench.experts = recorded.experts;
  bench.topk = recorded.topk;
  for (int r = 0; r < bench.ranks; ++r) decisions.push_back(slice(all, r * bench.tokens, bench.tokens));
  return decisions;
}

void require_legal_row(const BenchFlags& flags, DataType type, const char* what) {
  const std::int64_t bytes = std::int64_t{flags.shape.hidden} * size_of(type);
  if (bytes % limits::row_bytes_multiple == 0 && bytes <= limits::row_bytes) return;
  throw UsageError(fmt::format(
      "--hidden {} of {}{}: a row has {} bytes, which is not a multiple of {} up to {}", flags.shape.hidden,
      name_of(type), what, bytes, limits::row_bytes_multiple, limits::row_bytes));
}

// Padded, without a capacity, every expert would get room for all tokens of all ranks.
std::int64_t chosen_capacity(const BenchCase& bench) {
  const ShapeFlags& shape = bench.flags.shape;
  if (shape.capacity >= 0 || shape.layout != Layout::padded) return std::max<std::int64_t>(0, shape.capacity);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(bench.experts), 0);
  for (const auto& mine : bench.decisions) {
    const auto more = rows_per_expert(mine, bench.experts);
    for (std::size_t e = 0; e < rows.size(); ++e) rows[e] += more[e];
  }
  return std::max<std::int64_t>(1, *std::max_element(rows.begin(), rows.end()));
}

std::int64_t largest_sum(const BenchCase& bench, bool of_row, bool local_too) {
  std::int64_t most = 0;
  for (int a = 0; a < bench.ranks; ++a) {
    std::int64_t sum = 0;
    for (int b = 0; b < bench.ranks; ++b) {
      if (a != b || local_too) sum += of_row ? bench.rows[a][b] : bench.rows[b][a];
    }
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

const char* name_of(Op op) { return op == Op::dispatch ? "dispatch" : "combine"; }
const char* name_of(Counts counts) { return counts == Counts::exact ? "exact" : "bounded"; }

std::int64_t BenchCase::row_bytes() const {
  const std::int64_t hidden = flags.shape.hidden;
  if (op == Op::combine) return hidden * size_of(combine_type());
  if (flags.quantise || sends_scales()) return hidden + 4 * scale_groups();
  return hidden * size_of(flags.shape.dtype);
}

std::int64_t BenchCase::bytes_recv_max() const {
  return largest_sum(*this, op == Op::combine, true) * row_bytes();
}
std::int64_t BenchCase::wire_bytes_max() const {
  return largest_sum(*this, op == Op::combine, false) * row_bytes();
}

std::int64_t BenchCase::logical_bytes_max() const {
  std::int64_t most = 0;
  for (const auto& mine : decisions) {
    most = std::max(most, static_cast<std::int64_t>(std::count_if(mine.ids.begin(), mine.ids.end(),
                                                                  [](std::int32_t id) { return id >= 0; })));
  }
  return most * row_bytes();
}

void require_legal_rows(const BenchFlags& flags, Op op) {
  if (flags.quantise && flags.shape.dtype == DataType::e4m3)
    throw UsageError("--quantise wants bf16, fp16 or fp32 rows; --dtype e4m3 is quantised already");
  require_legal_row(flags, flags.shape.dtype, "");
  if (flags.quantise) require_legal_row(flags, DataType::e4m3, ", as --quantise makes it");
  if (op == Op::combine && flags.shape.dtype == DataType::e4m3)
    require_legal_row(flags, DataType::bf16, ", as combine brings e4m3 home");
}

void require_legal_overlap(const BenchFlags& flags) {
  if (!flags.overlap) return;
  if (flags.common.engine != "cuda")
    throw UsageError("--overlap gemm runs GEMMs on the GPU of an operation; it wants --engine cuda");
  if (std::find(flags.shape.tokens.begin(), flags.shape.tokens.end(), 0) != flags.shape.tokens.end())
    throw UsageError("--overlap gemm wants rows that move beside the GEMMs; --tokens 0 has none");
}

void require_legal_graph(const BenchFlags& flags) {
  if (!flags.graph) return;
  if (flags.common.engine != "cuda") throw UsageError("--graph replays a CUDA graph; it wants --engine cuda");
  if (flags.shape.counts == Counts::exact)
    throw UsageError("--graph wants --counts bounded: a call that waits for its counts cannot be captured");
  if (flags.overlap) throw UsageError("--graph and --overlap cannot be measured together");
}

void require_traced_engine(const CommonFlags& flags, const char* flag) {
  if (flags.engine != "cpu")
    throw UsageError(fmt::format("{} wants --engine cpu; operations of the CUDA engine are not traced in this version", flag));
}

void require_legal_late(const BenchFlags& flags, int ranks) {
  if (flags.late_side && !flags.late) throw UsageError("--late-side says what makes a rank late; say which and how much with --late RANK:MS");
  if (flags.traced()) require_traced_engine(flags.common, flags.late ? "--late" : "--trace");
  if (flags.late && flags.late->rank >= ranks)
    throw UsageError(fmt::format("--late {}:{}: there is no rank {}, only {} to {}", flags.late->rank, flags.late->ms, flags.late->rank, 0, ranks - 1));
}

BenchCase make_case(const BenchFlags& flags, Op op, int ranks, std::int64_t tokens) {
  BenchCase bench;
  bench.flags = flags;
  bench.op = op;
  bench.ranks = ranks;
  bench.tokens = tokens;
  require_legal_rows(flags, op);
  bench.decisions = decide(flags.shape, bench);
  bench.first_expert = split_experts(bench.experts, ranks);
  for (const auto& mine : bench.decisions) bench.rows.push_back(rows_per_rank(mine, bench.first_expert));
  bench.flags.shape.capacity = chosen_capacity(bench);
  return bench;
}

CommunicatorOptions options_of(const BenchCase& bench) {
  const BenchFlags& flags = bench.flags;
  CommunicatorOptions options;
  options.engine = flags.common.engine;
  options.max_tokens = std::max<std::int64_t>(1, bench.tokens);
  options.experts = bench.experts;
  options.hidden = flags.shape.hidden;
  options.topk = bench.topk;
  options.dtype = flags.shape.dtype;
  options.layout = flags.shape.layout;
  options.alignment = flags.shape.alignment;
  options.capacity = flags.shape.capacity;
  options.first_expert = bench.first_expert;
  options.deadline_ms = flags.common.deadline_ms;
  options.workers = flags.workers;
  options.trace_dir = flags.trace_dir;
  // All iterations, for the medians; a file has at least what it has by default.
  if (flags.traced()) options.trace_operations = flags.trace_dir.empty() ? flags.iters : std::max(flags.iters, 4096);
  return options;
}

}  // namespace sluice::cli
