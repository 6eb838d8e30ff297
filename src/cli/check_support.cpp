// What the checks of check.h share.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "cli/bench_rows.h"
#include "cli/check.h"
#include "cli/engine_views.h"
#include "cli/exchange.h"
#include "cli/routing_model.h"

namespace sluice::cli {

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw Broken(otherwise);
}

std::vector<double> CheckContext::gather(double mine) const {
  std::vector<double> all;
  for (const auto& message : ranks.group.all_gather(std::as_bytes(std::span(&mine, 1)))) {
    double value = 0;
    std::memcpy(&value, message.data(), std::min(sizeof value, message.size()));
    all.push_back(value);
  }
  return all;
}

BenchCase check_case(const CheckContext& context, const CheckShape& shape) {
  BenchCase bench;
  bench.flags.common = context.flags;
  bench.flags.shape.hidden = shape.hidden;
  bench.flags.shape.dtype = shape.dtype;
  bench.flags.shape.layout = shape.layout;
  bench.flags.shape.counts = shape.counts;
  bench.flags.shape.capacity = shape.capacity;
  bench.flags.shape.alignment = shape.alignment;
  bench.flags.quantise = shape.quantise;
  bench.ranks = context.size();
  bench.experts = shape.experts > 0 ? shape.experts : 4 * bench.ranks + 1;
  bench.topk = std::min(shape.topk, bench.experts);
  bench.first_expert = split_experts(bench.experts, bench.ranks);
  RoutingModel model;
  parse_routing_model(shape.routing, model);
  for (int r = 0; r < bench.ranks; ++r) {
    const std::int64_t tokens = shape.tokens.empty()
                                    ? 40 + 7 * (r % 8)
                                    : shape.tokens[static_cast<std::size_t>(r) % shape.tokens.size()];
    bench.tokens = std::max(bench.tokens, tokens);
    bench.decisions.push_back(generate(model, bench.experts, bench.topk, tokens, context.flags.seed,
                                       static_cast<std::uint64_t>(r)));
    bench.rows.push_back(rows_per_rank(bench.decisions.back(), bench.first_expert));
  }
  return bench;
}

CommunicatorOptions check_options(const CheckContext& context, const BenchCase& bench) {
  CommunicatorOptions options = options_of(bench);
  options.max_tokens = std::max<std::int64_t>(128, bench.tokens);
  options.checks = Checks::on;
  options.deadline_ms = std::min(context.flags.deadline_ms == 0 ? 10'000 : context.flags.deadline_ms, 10'000);
  return options;
}

DispatchResult send(Communicator& comm, const DispatchArgs& args) {
  DispatchResult sent = comm.dispatch(for_engine(comm, args));
  sent.ready.wait();
  return sent;
}

void exchange_and_check(CheckContext& context, Communicator& comm, const BenchCase& bench, int channel) {
  const Exchange exchange(bench, context.rank());
  DispatchArgs out = exchange.dispatch_args();
  out.channel = channel;
  const DispatchResult sent = send(comm, out);
  const std::string wrong_rows = check_dispatch(bench, context.rank(), on_host(comm, sent));
  require(wrong_rows.empty(), "dispatch, " + wrong_rows);
  CombineArgs back = exchange.combine_args(comm, sent);
  back.channel = channel;
  const CombineResult home = comm.combine(back);
  home.ready.wait();
  const std::string wrong_sums = check_combine(bench, context.rank(), on_host(comm, home));
  require(wrong_sums.empty(), "combine, " + wrong_sums);
}

void exchange_shape(CheckContext& context, const CheckShape& shape) {
  const BenchCase bench = check_case(context, shape);
  Communicator comm(context.ranks.group, check_options(context, bench));
  exchange_and_check(context, comm, bench);
}

std::string error_of(const char* kind, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    if (std::string_view(error.kind()) == kind) return error.what();
    throw Broken(fmt::format("{} expected, got {}: {}", kind, error.kind(), error.what()));
  }
  throw Broken(fmt::format("{} expected, but the call succeeded", kind));
}

}  // namespace sluice::cli
