#include "core/check_call.h"

#include <algorithm>

#include <sluice/limits.h>

#include "core/argument_check.h"
#include "core/numbers.h"

namespace sluice::core {

namespace {

bool is_row(std::int64_t bytes) {
  return bytes > 0 && bytes % limits::row_bytes_multiple == 0 && bytes <= limits::row_bytes;
}

// Before where the rows begin: rows that lie one behind the other, but are too short or long, would be called misplaced.
void check_row_bytes(const ArgumentCheck& check, std::int64_t hidden, DataType type) {
  const std::int64_t bytes = hidden * size_of(type);
  if (is_row(bytes)) return;
  check.refuse(fmt::format("rows of {} elements of {} have {} bytes, which is not a multiple of {} up to {}", hidden,
                           name_of(type), bytes, limits::row_bytes_multiple, limits::row_bytes));
}

void check_quantised_bytes(const ArgumentCheck& check, std::int64_t hidden) {
  if (is_row(hidden)) return;
  check.refuse(fmt::format("rows of {} elements, quantised to e4m3, have {} bytes, which is not a multiple of {} up to {}", hidden,
                           hidden, limits::row_bytes_multiple, limits::row_bytes));
}

// Where T comes from.
const char* source_of_tokens(Routing routing) {
  switch (routing) {
    case Routing::ids: return ": as many rows as expert_ids has";
    case Routing::rank_mask: return ": as many rows as rank_mask has";
    default: return ": as many rows as the dispatch that made the route had";
  }
}

void check_rows(const ArgumentCheck& check, const DispatchArgs& args, DispatchCall& call) {
  check.require(args.rows.dims == 2, "rows must have two dimensions, [T, H]");
  check.shape("rows", args.rows, {call.tokens, -1}, source_of_tokens(call.routing));
  check.type("rows", args.rows, types_of_rows);
  call.hidden = args.rows.shape[1];
  check_row_bytes(check, call.hidden, args.rows.dtype);
  check.rows("rows", args.rows);
  call.in_type = call.out_type = args.rows.dtype;
  call.row_stride = args.rows.strides[0] * size_of(call.in_type);
  if (args.quantise != Quantise::none) {
    check.type("rows to quantise", args.rows, {DataType::bf16, DataType::fp16, DataType::fp32});
    check.require(!args.scales.given(), "scales are given, but quantise makes its own; give one of them");
    call.out_type = DataType::e4m3;
    check_quantised_bytes(check, call.hidden);
    call.scale_type = args.quantise == Quantise::e4m3_power_of_two ? DataType::uint8 : DataType::fp32;
    call.scale_count = numbers::quantise_scales(call.hidden, args.quantise);
  }
  call.row_bytes = call.hidden * size_of(call.out_type);
}

void check_scales(const ArgumentCheck& check, const DispatchArgs& args, DispatchCall& call) {
  if (!args.scales.given()) return;
  check.shape("scales", args.scales, {call.tokens, -1}, source_of_tokens(call.routing));
  check.choice("element type of scales", args.scales.dtype, DataType::int64);
  call.scale_type = args.scales.dtype;
  call.scale_count = args.scales.shape[1];
  const std::int64_t size = size_of(call.scale_type);
  for (const std::int64_t stride : {args.scales.strides[0], args.scales.strides[1]}) {
    check.between("strides of scales", stride, -limits::elements, limits::elements);
  }
  call.scale_row_stride = args.scales.strides[0] * size;
  call.scale_stride = args.scales.strides[1] * size;
  const std::int64_t bytes = call.scale_count * size;
  if (call.scale_count > limits::scale_bytes || bytes == 0 || bytes % limits::scale_bytes_multiple != 0 || bytes > limits::scale_bytes) {
    check.refuse(fmt::format("scales of {} elements of {} have {} bytes per row, which is not a multiple of {} up to {}",
                             call.scale_count, name_of(call.scale_type), bytes, limits::scale_bytes_multiple,
                             limits::scale_bytes));
  }
}

void check_capacity(const ArgumentCheck& check, const DispatchArgs& args, const Config& config, DispatchCall& call) {
  const int rank = config.topology.rank;
  const bool padded = args.layout == Layout::padded;
  const std::int64_t experts = padded ? std::max(1, config.topology.local_experts(rank)) : 1;
  const std::int64_t most = limits::arena_bytes / (experts * (call.row_bytes + limits::scale_bytes));
  constexpr const char* limit = ", the rows of this size that fit into the largest arena";
  check.between("capacity", args.capacity, 0, most, limit);
  call.most = most_rows(config.options, config.topology, args.layout, call.topk, call.alignment, rank);
  if (args.capacity > 0) {
    call.capacity = args.capacity;
    call.capacity_from = CapacityFrom::caller;
  }
  const auto& route = args.route.state();
  if (route) {
    if (args.capacity != 0 && args.capacity != route->capacity) {
      check.refuse(fmt::format("capacity = {}, but the route was made with {}; leave it 0", args.capacity, route->capacity));
    }
    call.capacity = padded || route->rows_known < 0 ? route->capacity : route->rows_known;
  }
  if (args.output.given()) {
    const std::int64_t local = config.topology.local_experts(rank);
    if (padded) check.shape("output", args.output, {local, -1, call.hidden});
    else check.shape("output", args.output, {-1, call.hidden});
    check.type("output", args.output, {call.out_type});
    check.rows("output", args.output);
    const std::int64_t room = args.output.shape[padded ? 1 : 0];
    if (call.capacity == open_capacity) {
      call.capacity = room;
      call.capacity_from = CapacityFrom::output;
    }
    if (room < call.capacity) {
      check.refuse(fmt::format("output has room for {} rows, but the capacity is {}", room, call.capacity));
    }
  }
  // Not by what the arena has left, unless too little is an error.
  const bool drops = args.on_overflow == OnOverflow::drop && !route;
  if (call.capacity == open_capacity && (padded || drops || args.counts == Counts::bounded)) call.capacity = call.most;
  if (call.capacity == open_capacity) call.capacity_from = CapacityFrom::arena;
  check.between("capacity (from max_tokens, since none is given)", call.capacity, open_capacity, most, limit);
}

void check_statistics(const ArgumentCheck& check, const TensorView& expert_load, const TensorView& waited,
                      const Topology& topology) {
  if (expert_load.given()) {
    check.shape("expert_load", expert_load, {topology.local_experts(topology.rank)});
    check.type("expert_load", expert_load, {DataType::int32});
    check.row_major("expert_load", expert_load);
  }
  if (waited.given()) {
    check.shape("waited", waited, {topology.ranks});
    check.type("waited", waited, {DataType::int64});
    check.row_major("waited", waited);
  }
}

void fill_digest(const DispatchArgs& args, DispatchCall& call) {
  Digest& digest = call.digest;
  digest[Field::kind] = static_cast<std::int64_t>(OperationKind::dispatch);
  digest[Field::route] = args.route.valid() ? args.route.state()->number : 0;
  digest[Field::routing] = static_cast<std::int64_t>(call.routing);
  digest[Field::layout] = static_cast<std::int64_t>(args.layout);
  digest[Field::dtype] = static_cast<std::int64_t>(call.in_type);
  digest[Field::hidden] = call.hidden;
  digest[Field::topk] = call.topk;
  digest[Field::scale_bytes] = call.scale_count * size_of(call.scale_type);
  digest[Field::counts] = static_cast<std::int64_t>(args.counts);
  digest[Field::alignment] = call.alignment;
  digest[Field::quantise] = static_cast<std::int64_t>(args.quantise);
  digest[Field::scale_layout] = static_cast<std::int64_t>(args.scale_layout);
  digest[Field::on_overflow] = static_cast<std::int64_t>(args.on_overflow);
  digest[Field::weights] = call.weights;
}

}  // namespace

void check_routing(const DispatchArgs& args, const Config& config, const std::string& where, DispatchCall& call) {
  const Topology& topology = config.topology;
  const ArgumentCheck check(where, topology.rank);
  check.choice("layout", args.layout, Layout::padded);
  check.choice("checks", args.checks, Checks::off);
  call.checks = args.checks == Checks::by_default ? config.options.checks == Checks::on : args.checks == Checks::on;
  const int given = args.expert_ids.given() + args.rank_mask.given() + args.route.valid();
  check.require(given == 1, "exactly one of expert_ids, rank_mask and route must be given");
  if (args.expert_ids.given()) {
    check.shape("expert_ids", args.expert_ids, {-1, -1});
    check.type("expert_ids", args.expert_ids, {DataType::int32, DataType::int64});
    check.row_major("expert_ids", args.expert_ids);
    call.routing = Routing::ids;
    call.tokens = args.expert_ids.shape[0];
    check.between("topk (the second dimension of expert_ids)", args.expert_ids.shape[1], 1, limits::topk);
    call.topk = static_cast<std::int32_t>(args.expert_ids.shape[1]);
  } else if (args.rank_mask.given()) {
    check.shape("rank_mask", args.rank_mask, {-1, topology.ranks});
    check.type("rank_mask", args.rank_mask, {DataType::uint8});
    check.row_major("rank_mask", args.rank_mask);
    check.require(args.layout == Layout::packed, "a rank_mask names no experts: only the packed layout is possible");
    check.require(!args.weights.given(), "weights need expert_ids, not a rank_mask");
    call.routing = Routing::rank_mask;
    call.tokens = args.rank_mask.shape[0];
  } else {
    call.routing = Routing::route;
    call.tokens = args.route.tokens();
    call.topk = args.route.topk();
    const Layout made = args.route.state()->tables.layout;
    if (args.layout != made) {
      check.refuse(fmt::format("layout = {}, but the route was made with {}; give that, or dispatch with ids", name_of(args.layout),
                               name_of(made)));
    }
  }
  if (call.tokens > config.options.max_tokens) {
    check.refuse(fmt::format("{} tokens, but this communicator was created for max_tokens = {}; raise it or split the batch",
                             call.tokens, config.options.max_tokens));
  }
}

DispatchCall check_call(const DispatchArgs& args, const Config& config, const std::string& where) {
  const ArgumentCheck check(where, config.topology.rank);
  DispatchCall call;
  check.choice("counts", args.counts, Counts::bounded);
  check.choice("on_overflow", args.on_overflow, OnOverflow::drop);
  check.choice("quantise", args.quantise, Quantise::e4m3_power_of_two);
  check.choice("scale_layout", args.scale_layout, ScaleLayout::column);
  check.choice("method", args.method, Method::automatic);
  check.choice("run_on", args.run_on, RunOn::callers_stream);
  check_routing(args, config, where, call);
  check_rows(check, args, call);
  check_scales(check, args, call);
  check.between("alignment", args.alignment, 1, limits::alignment);
  call.alignment = args.route.valid() ? args.route.state()->tables.alignment
                   : args.layout == Layout::grouped ? args.alignment : 1;
  if (args.weights.given()) {
    check.shape("weights", args.weights, {call.tokens, call.topk},
                args.route.valid() ? ": as the dispatch that made the route had expert_ids" : ": as expert_ids has");
    check.type("weights", args.weights, {DataType::fp32});
    check.row_major("weights", args.weights);
    check.require(call.topk > 0, "weights need a route made from expert_ids");
    call.weights = true;
  }
  check_capacity(check, args, config, call);
  check_statistics(check, args.expert_load, args.waited, config.topology);
  check.between("num_sms", args.num_sms, 0, limits::num_sms);
  fill_digest(args, call);
  return call;
}

namespace {

void check_input(const ArgumentCheck& check, const CombineArgs& args, const RouteState& route, const Topology& topology,
                 CombineCall& call) {
  const bool padded = route.tables.layout == Layout::padded;
  if (!padded) check.shape("rows", args.rows, {-1, -1});
  else check.shape("rows", args.rows, {topology.local_experts(topology.rank), route.capacity, -1},
                   ": as the dispatch of this route delivered them");
  check.type("rows", args.rows, {DataType::bf16, DataType::fp16, DataType::fp32},
             args.rows.dtype == DataType::e4m3 ? "; combine the outputs of the experts, not the quantised rows" : "");
  call.dtype = args.rows.dtype;
  call.hidden = args.rows.shape[padded ? 2 : 1];
  check_row_bytes(check, call.hidden, call.dtype);
  check.rows("rows", args.rows);
  call.rows = args.rows.shape[padded ? 1 : 0];
  const std::int64_t size = size_of(call.dtype);
  call.row_stride = args.rows.strides[padded ? 1 : 0] * size;
  call.expert_stride = padded ? args.rows.strides[0] * size : 0;
  if (!padded && route.rows_known >= 0 && call.rows < route.rows_known) {
    check.refuse(fmt::format("rows has shape [{}, {}], but the dispatch of this route delivered {} rows; give them all, padding "
                             "included", call.rows, call.hidden, route.rows_known));
  }
}

// One float per row, or per slot of a packed row.
void check_floats(const ArgumentCheck& check, const char* name, const ConstTensorView& view, const CombineArgs& args,
                  const RouteState& route, bool per_slot) {
  if (!view.given()) return;
  check.type(name, view, {DataType::fp32});
  const bool packed = route.tables.layout == Layout::packed;
  const auto& rows = args.rows.shape;
  if (route.tables.layout == Layout::padded) check.shape(name, view, {rows[0], rows[1]}, ": one for each row");
  else if (packed && per_slot) check.shape(name, view, {rows[0], route.tables.topk}, ": one for each row and expert of its token");
  else if (packed) check.shape(name, view, {rows[0]}, ": one for each row; the [N, K] of dispatch belong into the sum over the "
                                                      "experts that you write into the row");
  else check.shape(name, view, {rows[0]}, ": one for each row, as DispatchResult has them");
  check.row_major(name, view);
}

}  // namespace

CombineCall check_call(const CombineArgs& args, const Config& config, const std::string& where) {
  const ArgumentCheck check(where, config.topology.rank);
  check.require(args.route.valid(), "no route is given; give DispatchResult::route");
  check.choice("method", args.method, Method::automatic);
  check.choice("run_on", args.run_on, RunOn::callers_stream);
  const RouteState& route = *args.route.state();
  CombineCall call;
  check_input(check, args, route, config.topology, call);
  check_floats(check, "weights", args.weights, args, route, false);
  check_floats(check, "values", args.values, args, route, true);
  check.require(!args.values.given() || route.tables.topk > 0, "values need a route made from expert_ids");
  constexpr const char* like_result = ": one row for each token of the dispatch, as long as those of rows";
  check.require(!args.bias[1].given() || args.bias[0].given(), "bias[1] is given without bias[0]");
  for (const ConstTensorView& bias : args.bias) {
    if (!bias.given()) continue;
    check.shape("bias", bias, {route.tables.tokens, call.hidden}, like_result);
    check.type("bias", bias, {call.dtype});
    check.rows("bias", bias);
  }
  if (args.output.given()) {
    check.shape("output", args.output, {route.tables.tokens, call.hidden}, like_result);
    check.type("output", args.output, {call.dtype});
    check.rows("output", args.output);
  }
  check_statistics(check, {}, args.waited, config.topology);
  check.between("num_sms", args.num_sms, 0, limits::num_sms);
  call.weights = args.weights.given();
  call.values = args.values.given();
  Digest& digest = call.digest;
  digest[Field::kind] = static_cast<std::int64_t>(OperationKind::combine);
  digest[Field::route] = route.number;
  digest[Field::dtype] = static_cast<std::int64_t>(call.dtype);
  digest[Field::hidden] = call.hidden;
  digest[Field::weights] = call.weights;
  digest[Field::values] = call.values;
  digest[Field::single_rounding] = args.single_rounding;
  return call;
}

}  // namespace sluice::core
