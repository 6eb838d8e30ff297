#include "core/config.h"

#include <algorithm>

#include <fmt/format.h>

#include <sluice/errors.h>
#include <sluice/limits.h>
#include <sluice/version.h>

#include "core/argument_check.h"
#include "core/numbers.h"
#include "core/route_state.h"

namespace sluice::core {

namespace {

void check_limits(const CommunicatorOptions& o, int ranks, const ArgumentCheck& check) {
  check.between("ranks", ranks, 1, limits::ranks_per_node);
  check.between("max_tokens", o.max_tokens, 0, limits::max_tokens);
  check.between("experts", o.experts, 1, limits::experts);
  check.between("topk", o.topk, 0, limits::topk);
  check.between("channels", o.channels, 1, limits::channels);
  check.between("deadline_ms", o.deadline_ms, 0, limits::deadline_ms);
  check.between("alignment", o.alignment, 1, limits::alignment);
  check.choice("layout", o.layout, Layout::padded);
  check.choice("dtype", o.dtype, DataType::int64);
  check.type("dtype", o.dtype, types_of_rows);
  check.choice("checks", o.checks, Checks::off);
  check.between("hidden", o.hidden, 1, limits::row_bytes);
  const bool padded = o.layout == Layout::padded;
  check.between("capacity", o.capacity, 0, limits::elements / (padded ? o.experts : 1),
                padded ? ", the most rows of a tensor divided by experts" : ", the most rows of a tensor");
  check.between("arena_bytes", o.arena_bytes, 0, limits::arena_bytes);
  check.between("workers", o.workers, 0, limits::workers);
  check.between("trace_operations", o.trace_operations, 0, limits::trace_operations);
  const std::int64_t row_bytes = o.hidden * size_of(o.dtype);
  if (row_bytes % limits::row_bytes_multiple != 0 || row_bytes > limits::row_bytes) {
    check.refuse(fmt::format("rows of hidden = {} elements of {} have {} bytes, which is not a multiple of {} up to {}",
                             o.hidden, name_of(o.dtype), row_bytes, limits::row_bytes_multiple, limits::row_bytes));
  }
}

Topology split_experts(const CommunicatorOptions& o, int rank, int ranks, const ArgumentCheck& check) {
  Topology topology;
  topology.rank = rank;
  topology.ranks = ranks;
  topology.experts = o.experts;
  if (o.first_expert.empty()) {
    if (o.experts % ranks != 0) {
      check.refuse(fmt::format("experts = {} is not divisible by {} ranks; give first_expert for an uneven split",
                               o.experts, ranks));
    }
    topology.even = o.experts / ranks;
    for (int r = 0; r <= ranks; ++r) topology.first_expert[r] = r * topology.even;
    return topology;
  }
  if (o.first_expert.size() != static_cast<std::size_t>(ranks) + 1) {
    check.refuse(fmt::format("first_expert has {} entries, but ranks + 1 = {} are needed", o.first_expert.size(), ranks + 1));
  }
  if (o.first_expert.front() != 0 || o.first_expert.back() != o.experts ||
      !std::is_sorted(o.first_expert.begin(), o.first_expert.end())) {
    check.refuse(fmt::format("first_expert must ascend from 0 to experts = {}", o.experts));
  }
  std::copy(o.first_expert.begin(), o.first_expert.end(), topology.first_expert);
  return topology;
}

std::int64_t small_output_bytes(const CommunicatorOptions& o, const Topology& t, std::int64_t rows, int local) {
  const std::int64_t slots = o.layout == Layout::packed ? rows * o.topk : rows;
  return slots * 8 + (local + t.ranks) * 24 + 8 * 64;
}

// The arena holds, per channel, what one dispatch and its combine need at once, twice where the next
// dispatch may start before the combine has ended.
std::vector<SizeTerm> arena_terms(const CommunicatorOptions& o, const Topology& t, const ArgumentCheck& check) {
  int local = 1;
  for (int r = 0; r < t.ranks; ++r) local = std::max(local, t.local_experts(r));
  Topology fullest = t;
  fullest.first_expert[t.ranks] = fullest.first_expert[t.ranks - 1] + local;
  std::int64_t rows = o.capacity;
  if (rows == 0) rows = most_rows(o, fullest, o.layout, o.topk, o.alignment, t.ranks - 1);
  if (o.layout == Layout::padded) rows *= local;
  if (static_cast<double>(rows) * static_cast<double>(o.hidden * size_of(o.dtype)) * o.channels > static_cast<double>(limits::arena_bytes)) {
    check.refuse(fmt::format("{} rows of {} bytes on {} channels are more than any arena holds; lower max_tokens, or give a "
                             "capacity", rows, o.hidden * size_of(o.dtype), o.channels));
  }
  const std::int64_t row_bytes = o.hidden * size_of(o.dtype);
  const std::int64_t packed = o.layout == Layout::packed ? rows : t.ranks * o.max_tokens;
  RouteTables tables;
  tables.layout = o.layout;
  tables.tokens = o.max_tokens;
  tables.topk = std::max(o.topk, 1);
  tables.ranks = t.ranks;
  tables.packed_limit = packed;
  Slices route;
  lay_out(route, tables, t.experts);
  const std::int64_t groups = numbers::quantise_groups(o.hidden);
  const std::int64_t c = o.channels;
  std::vector<SizeTerm> terms;
  terms.push_back({"dispatch results: rows", 2 * c * rows * row_bytes});
  terms.push_back({"dispatch results: scales", 2 * c * (rows + 16) * groups * 4});
  terms.push_back({"dispatch results: ids, weights, counts", 2 * c * small_output_bytes(o, t, rows, local)});
  // Local sums are FP32 with single_rounding.
  terms.push_back({"combine: inputs or local sums", c * packed * (o.layout == Layout::packed ? row_bytes : std::max<std::int64_t>(row_bytes, 4 * o.hidden))});
  terms.push_back({"combine: results", c * o.max_tokens * row_bytes});
  terms.push_back({"combine: weights and values", c * packed * 4 * (o.topk + 1)});
  terms.push_back({"routes", 4 * c * route.bytes()});
  terms.push_back({"operations in flight", 4 * c * (packed * o.topk * 4 + t.ranks * 256 + 1024)});
  terms.push_back({"rounding to blocks", c * 64 * Arena::unit});
  return terms;
}

}  // namespace

std::int64_t most_rows(const CommunicatorOptions& options, const Topology& topology, Layout layout, int topk,
                       std::int64_t alignment, int rank) {
  const std::int64_t packed = topology.ranks * options.max_tokens;
  if (layout != Layout::grouped) return packed;
  const std::int64_t local = topology.local_experts(rank);
  const std::int64_t rows = packed * std::min<std::int64_t>(topk, local);
  return align_up(rows + std::min(local, rows) * (alignment - 1), alignment);
}

Config resolve(const CommunicatorOptions& options, int rank, int ranks, std::int64_t engine_bytes) {
  const std::string where = fmt::format("communicator on rank {}", rank);
  const ArgumentCheck check(where, rank);
  check_limits(options, ranks, check);
  Config config{options, split_experts(options, rank, ranks, check),
                page_layout(engine_bytes, ranks, options.experts, options.channels), {}};
  auto& terms = config.size.terms;
  terms.push_back({"control page", config.page.arena_offset()});
  std::int64_t arena = options.arena_bytes;
  if (arena > 0) terms.push_back({"arena as asked", align_up(arena, memory_page)});
  else {
    for (const SizeTerm& term : arena_terms(options, config.topology, check)) {
      arena += term.bytes;
      terms.push_back(term);
    }
    terms.push_back({"rounding to pages", align_up(arena, memory_page) - arena});
  }
  config.size.arena_bytes = align_up(arena, memory_page);
  config.size.window_bytes = config.page.arena_offset() + config.size.arena_bytes;
  config.options.arena_bytes = config.size.arena_bytes;
  return config;
}

std::string agreement_of(const CommunicatorOptions& o) {
  std::string split;
  for (const int first : o.first_expert) split += fmt::format("{}{}", split.empty() ? "" : " ", first);
  if (split.empty()) split = "an even split";
  return fmt::format(
      "version={}\nengine={}\nmax_tokens={}\nexperts={}\nhidden={}\ntopk={}\ndtype={}\nlayout={}\nalignment={}\ncapacity={}\n"
      "first_expert={}\nchannels={}\narena_bytes={}\ndeadline_ms={}\nchecks={}\n",
      version(), o.engine, o.max_tokens, o.experts, o.hidden, o.topk, name_of(o.dtype), name_of(o.layout),
      o.alignment, o.capacity, split, o.channels, o.arena_bytes, o.deadline_ms, o.checks == Checks::on ? "on" : "off");
}

void check_agreement(const std::vector<std::vector<std::byte>>& texts, int rank) {
  const auto text_of = [&](std::size_t r) {
    return std::string(reinterpret_cast<const char*>(texts[r].data()), texts[r].size());
  };
  const std::string first = text_of(0);
  for (std::size_t r = 1; r < texts.size(); ++r) {
    const std::string other = text_of(r);
    if (other == first) continue;
    const std::size_t at = static_cast<std::size_t>(
        std::mismatch(first.begin(), first.end(), other.begin(), other.end()).first - first.begin());
    const std::size_t line = first.rfind('\n', at == 0 ? 0 : at - 1);
    const std::size_t begin = line == std::string::npos ? 0 : line + 1;
    const auto value = [&](const std::string& text) {
      const std::string setting = text.substr(begin, text.find('\n', begin) - begin);
      return setting.substr(setting.find('=') + 1);
    };
    throw ArgumentError(fmt::format("communicator on rank {}: rank {} was made with {} = {}, rank 0 with {}; give all ranks "
                                    "the same options",
                                    rank, r, first.substr(begin, first.find('=', begin) - begin), value(other), value(first)),
                        rank);
  }
}

}  // namespace sluice::core
