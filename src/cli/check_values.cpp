// Promises V1 to V7: values.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "cli/bench_rows.h"
#include "cli/check.h"
#include "cli/engine_views.h"
#include "cli/exchange.h"
#include "cli/numbers.h"

namespace sluice::cli {
namespace {

constexpr Layout layouts[] = {Layout::packed, Layout::grouped, Layout::padded};

void each_token_arrives_once(CheckContext& context) {
  for (const Layout layout : layouts) exchange_shape(context, {.layout = layout});
}

void same_bytes_every_time(CheckContext& context) {
  const BenchCase bench = check_case(context, {});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const Exchange exchange(bench, context.rank());
  std::vector<std::uint8_t> first;
  for (int run = 0; run < 50; ++run) {
    const DispatchResult sent = send(comm, exchange.dispatch_args());
    const auto bytes = static_cast<std::size_t>(sent.rows.elements() * size_of(sent.rows.dtype));
    std::vector<std::uint8_t> got(bytes);
    fetch(memory_kind(comm), got.data(), sent.rows.data, bytes);
    if (run == 0) first = got;
    require(got == first, fmt::format("run {} gave other bytes than run 0", run));
  }
  const DispatchResult sent = send(comm, exchange.dispatch_args());
  const std::string wrong = check_dispatch(bench, context.rank(), on_host(comm, sent));
  require(wrong.empty(), wrong);
}

void combine_adds_in_one_order(CheckContext& context) {
  for (const Layout layout : layouts) {
    for (const DataType type : {DataType::bf16, DataType::fp16, DataType::fp32}) {
      exchange_shape(context, {.topk = 6, .dtype = type, .layout = layout});
    }
  }
}

void quantised_rows(CheckContext& context) {
  exchange_shape(context, {.hidden = 320, .quantise = true});
  exchange_shape(context,
                 {.hidden = 256, .dtype = DataType::fp32, .layout = Layout::grouped, .quantise = true});
}

double dot(const float* a, const TensorView& b, double& size) {
  double sum = 0;
  for (std::int64_t i = 0; i < b.elements(); ++i) {
    const double product = static_cast<double>(a[i]) * static_cast<double>(b.as<float>()[i]);
    sum += product;
    size += std::fabs(product);
  }
  return sum;
}

// <dispatch(x), y> = <x, combine(y)>, over all ranks together.
void adjoint(CheckContext& context) {
  const BenchCase bench = check_case(context, {.dtype = DataType::fp32});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const Exchange exchange(bench, context.rank());
  const DispatchArgs out = exchange.dispatch_args();
  const DispatchResult sent = send(comm, out);
  const TensorView there_rows = on_host(comm, sent.rows);
  const std::vector<float> copy(there_rows.as<float>(), there_rows.as<float>() + there_rows.elements());
  const CombineArgs back = exchange.combine_args(comm, sent);  // takes the place of the rows
  double size = 0;
  const double there = dot(copy.data(), on_host(comm, sent.rows), size);
  const CombineResult home = comm.combine(back);
  home.ready.wait();
  double ignored = 0;
  const double here = dot(static_cast<const float*>(out.rows.data), on_host(comm, home.rows), ignored);
  double difference = 0;
  double scale = 0;
  for (const double part : context.gather(there - here)) difference += part;
  for (const double part : context.gather(size)) scale += part;
  require(std::fabs(difference) <= 1e-6 * scale,
          fmt::format("<dispatch x, y> and <x, combine y> differ by {:g} of {:g}", difference, scale));
}

void nan_stays_in_its_row(CheckContext& context) {
  const BenchCase bench = check_case(context, {.tokens = {16}, .dtype = DataType::fp32});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const std::int64_t hidden = bench.flags.shape.hidden;
  std::vector<float> rows(static_cast<std::size_t>(16 * hidden), 1.0F);
  constexpr std::int64_t bad_row = 5;
  rows[bad_row * hidden + 3] = std::numeric_limits<float>::quiet_NaN();
  const Exchange exchange(bench, context.rank());
  DispatchArgs out = exchange.dispatch_args();
  out.rows = ConstTensorView(rows.data(), DataType::fp32, 16, hidden);
  const DispatchResult sent = send(comm, out);
  CombineArgs back;
  back.rows = sent.rows;
  back.route = sent.route;
  const CombineResult home = comm.combine(back);
  home.ready.wait();
  const TensorView sums = on_host(comm, home.rows);
  for (std::int64_t i = 0; i < sums.elements(); ++i) {
    const bool expected = i == bad_row * hidden + 3;
    require(std::isnan(sums.as<float>()[i]) == expected,
            fmt::format("token {}, element {}: {}", i / hidden, i % hidden,
                        expected ? "the NaN got lost" : "a NaN of another element came"));
  }
}

void every_element_type(CheckContext& context) {
  for (const DataType type : {DataType::bf16, DataType::fp16, DataType::fp32, DataType::e4m3}) {
    exchange_shape(context, {.hidden = 384, .dtype = type});
  }
}

}  // namespace

void add_value_promises(std::vector<Promise>& list) {
  list.push_back({"V1", "each_token_arrives_once_bit_for_bit", each_token_arrives_once});
  list.push_back({"V2", "fifty_runs_give_the_same_bytes", same_bytes_every_time});
  list.push_back({"V3", "combine_adds_in_one_order_and_rounds_once", combine_adds_in_one_order});
  list.push_back({"V4", "quantised_rows_follow_the_formula", quantised_rows});
  list.push_back({"V5", "dispatch_and_combine_are_adjoint", adjoint});
  list.push_back({"V6", "a_nan_stays_in_its_row", nan_stays_in_its_row});
  list.push_back({"V7", "every_element_type_travels", every_element_type});
}

}  // namespace sluice::cli
