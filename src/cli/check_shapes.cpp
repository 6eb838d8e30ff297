// Promises S1 to S6: shapes.
#include <fmt/format.h>

#include <algorithm>

#include "cli/bench_rows.h"
#include "cli/check.h"
#include "cli/engine_views.h"
#include "cli/exchange.h"

namespace sluice::cli {
namespace {

void unequal_and_empty(CheckContext& context) {
  for (const auto& tokens : {std::vector<std::int64_t>{1, 0}, {0, 1}, {63, 65}, {0}, {95, 1, 0, 33}}) {
    exchange_shape(context, {.tokens = tokens});
    exchange_shape(context, {.tokens = tokens, .layout = Layout::grouped, .alignment = 16});
  }
}

void uneven_split(CheckContext& context) {
  exchange_shape(context, {.experts = context.size() + 1, .topk = 1});
  exchange_shape(context, {.experts = 3 * context.size() + 2, .layout = Layout::grouped});
  if (context.size() == 1) return;
  const BenchCase bench = check_case(context, {});
  CommunicatorOptions options = check_options(context, bench);
  options.first_expert.clear();
  const std::string message = error_of("ArgumentError", [&] { Communicator(context.ranks.group, options); });
  require(message.find(fmt::format("{}", bench.experts)) != std::string::npos,
          "the error does not name the experts: " + message);
}

void row_sizes(CheckContext& context) {
  for (const int hidden : {8, 24, 2880, 7168, 32768})
    exchange_shape(context, {.tokens = {9, 4}, .hidden = hidden, .topk = 2});
}

void ids_in_both_widths(CheckContext& context) {
  const BenchCase bench = check_case(context, {});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const Decisions& mine = bench.decisions[context.rank()];
  const std::vector<std::int64_t> wide(mine.ids.begin(), mine.ids.end());
  const Exchange exchange(bench, context.rank());
  DispatchArgs out = exchange.dispatch_args();
  out.expert_ids = ConstTensorView(wide.data(), DataType::int64, mine.tokens(), bench.topk);
  const DispatchResult sent = send(comm, out);
  const std::string wrong = check_dispatch(bench, context.rank(), on_host(comm, sent));
  require(wrong.empty(), "int64 ids: " + wrong);
}

// A wrong id of rank 0 is an error that names it; the peers learn of it, and the next call works.
void wrong_ids_are_found(CheckContext& context) {
  ids_in_both_widths(context);
  const BenchCase bench = check_case(context, {});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const Exchange exchange(bench, context.rank());
  for (const bool twice : {false, true}) {
    std::vector<std::int32_t> ids = bench.decisions[context.rank()].ids;
    if (context.rank() == 0)
      ids[static_cast<std::size_t>(3 * bench.topk + 1)] =
          twice ? ids[static_cast<std::size_t>(3 * bench.topk)] : bench.experts;
    DispatchArgs out = exchange.dispatch_args();
    out.expert_ids = ConstTensorView(ids.data(), DataType::int32,
                                     static_cast<std::int64_t>(ids.size()) / bench.topk, bench.topk);
    out.checks = Checks::on;
    const std::string message =
        error_of(context.rank() == 0 ? "ArgumentError" : "PeerError", [&] { send(comm, out); });
    require(message.find(context.rank() == 0 ? "3" : "0") != std::string::npos,
            "the error does not say where: " + message);
  }
  exchange_and_check(context, comm, bench);
}

void everything_to_one_expert(CheckContext& context) {
  for (const Layout layout : {Layout::packed, Layout::grouped}) {
    BenchCase bench = check_case(context, {.topk = 1, .layout = layout});
    for (Decisions& mine : bench.decisions) std::fill(mine.ids.begin(), mine.ids.end(), bench.experts - 1);
    Communicator comm(context.ranks.group, check_options(context, bench));
    exchange_and_check(context, comm, bench);
  }
  exchange_shape(context, {.routing = "lognormal:2"});
}

}  // namespace

void add_shape_promises(std::vector<Promise>& list) {
  list.push_back({"S1", "tokens_may_differ_and_be_none", unequal_and_empty});
  list.push_back({"S2", "experts_split_evenly_or_as_asked", uneven_split});
  list.push_back({"S3", "any_row_of_16_to_65536_bytes", row_sizes});
  list.push_back({"S4", "wrong_ids_are_found", wrong_ids_are_found});
  list.push_back({"S5", "offsets_beyond_2_31", nullptr, "needs 5 GB and minutes; it is in the test suite"});
  list.push_back({"S6", "any_skew_is_exact", everything_to_one_expert});
}

}  // namespace sluice::cli
