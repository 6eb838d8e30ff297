// One measurement of the bench: its shape, its router decisions, and what follows from them.
#pragma once

#include <sluice/options.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_late.h"
#include "cli/common_flags.h"
#include "cli/decisions.h"
#include "cli/gemm.h"

namespace CLI {
class App;
}

namespace sluice::cli {

enum class Op { dispatch, combine };
const char* name_of(Op op);
const char* name_of(Counts counts);

// The flags that fix a communicator's shape.
struct ShapeFlags {
  std::vector<std::int64_t> tokens{4096};
  int hidden = 7168;
  int topk = 0;     // 0: of the routing file, else 8
  int experts = 0;  // 0: of the routing file, else 256
  DataType dtype = DataType::bf16;
  Layout layout = Layout::packed;
  Counts counts = Counts::exact;
  std::int64_t capacity = -1;  // padded: the rows of the fullest expert; else as 0, the upper bound
  std::int64_t alignment = 1;
  std::string routing = "uniform";
};
struct BenchFlags {
  CommonFlags common;
  ShapeFlags shape;
  std::vector<std::string> ops{"dispatch", "combine"};
  bool cached = false;
  bool quantise = false;
  bool graph = false;
  int num_sms = 0;
  std::string method = "automatic";
  int workers = 0;
  std::optional<GemmShape> overlap;
  std::optional<Late> late;
  std::optional<LateSide> late_side;  // nobody said: host
  std::string trace_dir;
  int iters = 20;
  int warmup = 3;

  // What is waited for is told only where something was asked for that costs a little anyway.
  bool traced() const { return late || !trace_dir.empty(); }
  LateSide side() const { return late_side.value_or(LateSide::host); }
};

// `info --size` takes them too.
void add_bench_flags(CLI::App& app, BenchFlags& flags);

struct BenchCase {
  BenchFlags flags;
  Op op = Op::dispatch;
  int ranks = 1;
  std::int64_t tokens = 0;
  int experts = 0;
  int topk = 0;
  std::vector<int> first_expert;                // [ranks + 1]
  std::vector<Decisions> decisions;             // [ranks]
  std::vector<std::vector<std::int64_t>> rows;  // [from][to]

  // Type of the rows that combine sums: e4m3 comes home as bf16.
  DataType combine_type() const {
    return flags.shape.dtype == DataType::e4m3 ? DataType::bf16 : flags.shape.dtype;
  }
  bool sends_scales() const { return flags.shape.dtype == DataType::e4m3; }
  std::int64_t scale_groups() const { return (flags.shape.hidden + 127) / 128; }
  // Bytes of one row as it travels in this operation, scales included.
  std::int64_t row_bytes() const;
  std::int64_t bytes_recv_max() const;     // see cli.md
  std::int64_t wire_bytes_max() const;     // the same without what stays on its rank
  std::int64_t logical_bytes_max() const;  // as if every (token, expert) pair travelled
};

// Throws UsageError where rows of this hidden size cannot take part in the operation.
void require_legal_rows(const BenchFlags& flags, Op op);

// Throws UsageError where GEMMs cannot run beside what these flags ask for.
void require_legal_overlap(const BenchFlags& flags);

// Throws UsageError where no graph can be captured of what these flags ask for.
void require_legal_graph(const BenchFlags& flags);

// Throws UsageError where nobody can be late, or nothing traced, as these flags say.
void require_legal_late(const BenchFlags& flags, int ranks);
void require_traced_engine(const CommonFlags& flags, const char* flag);

// Decisions of every rank: of the file (each rank takes the next `tokens`), or generated. Throws
// UsageError and FileError.
BenchCase make_case(const BenchFlags& flags, Op op, int ranks, std::int64_t tokens);

// Of a communicator that is made for `tokens` tokens per rank.
CommunicatorOptions options_of(const BenchCase& bench);

}  // namespace sluice::cli
