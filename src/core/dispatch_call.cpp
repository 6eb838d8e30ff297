// From the arguments of one dispatch to its blocks, its script and its result.
#include <utility>

#include <sluice/errors.h>

#include "core/communicator_state.h"

namespace sluice::core {

// What one dispatch takes from the arena, and the addresses in it.
struct DispatchBlocks {
  std::shared_ptr<Report> report;
  std::shared_ptr<engine::LaneEvent> ready;
  std::shared_ptr<RouteState> route;
  std::shared_ptr<HeldBlock> rows, scales, outputs, temporary;
  std::string holders;  // of the arena, where it has less than the rows could need
  std::int64_t capacity = 0;    // rows (padded: per expert)
  std::int64_t total_rows = 0;  // of the result
  std::byte* landed = nullptr;
  std::byte* scale_data = nullptr;
  std::int64_t scale_bytes = 0;
  std::int64_t scale_ld = 0;
  DispatchOutputs out;
  Placement placement;
  float* arrived_weights = nullptr;
};

namespace {

// Scales from one column to the next in column layout.
std::int64_t scale_ld(const DispatchCall& call, std::int64_t rows) {
  const std::int64_t size = size_of(call.scale_type);
  return align_up(rows * size, 16) / size;
}

void lay_out(Slices& slices, DispatchOutputs& out, const DispatchCall& call, Layout layout, const Topology& topology,
             std::int64_t total_rows) {
  const bool packed = layout == Layout::packed;
  const std::int64_t local = topology.local_experts(topology.rank);
  out.offset_count = (packed ? topology.ranks : local) + 1;
  out.weight_count = packed ? total_rows * call.topk : total_rows;
  out.num_rows = slices.take<std::int64_t>(1);
  out.dropped = slices.take<std::int64_t>(1);
  out.counts = slices.take<std::int32_t>(local);
  out.aligned_counts = slices.take<std::int32_t>(local);
  out.offsets = slices.take<std::int64_t>(out.offset_count);
  out.local_ids = packed && call.topk > 0 ? slices.take<std::int32_t>(total_rows * call.topk) : nullptr;
  out.weights = call.weights ? slices.take<float>(out.weight_count) : nullptr;
}

// The largest number below `too_many` that fits.
template <class Fits>
std::int64_t most_that_fit(std::int64_t too_many, const Fits& fits) {
  std::int64_t low = 0;
  while (too_many - low > 1) {
    const std::int64_t middle = low + (too_many - low) / 2;
    (fits(middle) ? low : too_many) = middle;
  }
  return low;
}

std::shared_ptr<RouteState> make_route(const DispatchArgs& args, const DispatchCall& call, std::int64_t number,
                                       std::int64_t packed_limit, const Topology& topology, Memory& memory) {
  auto route = std::make_shared<RouteState>();
  RouteTables& tables = route->tables;
  tables.layout = args.layout;
  tables.tokens = call.tokens;
  tables.topk = call.topk;
  tables.ranks = topology.ranks;
  tables.packed_limit = packed_limit;
  tables.alignment = call.alignment;
  route->block = memory.allocate_for(Owner::route, [&](Slices& slices) { lay_out(slices, tables, topology.experts); });
  route->channel = args.channel;
  route->number = number;
  return route;
}

// Rows last: exact without a capacity takes the largest gap that is left, at most the upper bound, and
// gives the rest back when the count is known. Scales lie before the rows, so that the end can shrink.
DispatchBlocks take_dispatch_blocks(const DispatchArgs& args, const DispatchCall& call, std::int64_t number,
                                    const Config& config, Memory& memory) {
  DispatchBlocks b;
  const Topology& topology = config.topology;
  const std::int64_t local = topology.local_experts(topology.rank);
  const std::int64_t per_row = args.layout == Layout::padded ? local : 1;
  const std::int64_t scale_size = size_of(call.scale_type);
  const bool takes_gap = call.capacity == open_capacity;
  const std::int64_t most = takes_gap ? call.most : call.capacity;
  const std::int64_t packed_limit = args.layout == Layout::packed ? most : topology.ranks * config.options.max_tokens;
  b.route = call.makes_route() ? make_route(args, call, number, packed_limit, topology, memory) : args.route.state();
  b.outputs = memory.allocate_for(Owner::result, [&](Slices& slices) {
    lay_out(slices, b.out, call, args.layout, topology, most * per_row);
  });
  b.temporary = memory.allocate_for(Owner::temporary, [&](Slices& slices) {
    lay_out(slices, b.placement, topology.ranks);
    b.arrived_weights = slices.take<float>(call.weights ? b.route->tables.packed_limit * call.topk : 0);
  });

  const auto scale_bytes = [&](std::int64_t rows) {
    const std::int64_t columns = args.scale_layout == ScaleLayout::row ? rows * per_row : scale_ld(call, rows * per_row);
    return align_up(columns * call.scale_count * scale_size, Arena::unit);
  };
  const bool own_scales = args.output.given() && call.scale_count > 0;
  if (own_scales) b.scales = memory.allocate(scale_bytes(most), Owner::result, Arena::End::low);
  const auto need = [&](std::int64_t rows) {
    return (own_scales ? 0 : scale_bytes(rows)) + align_up(rows * per_row * call.row_bytes, Arena::unit);
  };
  const Owner owner = args.output.given() ? Owner::temporary : Owner::result;
  b.rows = takes_gap ? memory.allocate_largest(need(most), owner, b.holders) : memory.allocate(need(most), owner, Arena::End::low);
  b.capacity = most;
  if (b.rows->bytes() < need(most)) b.capacity = most_that_fit(most, [&](std::int64_t rows) { return need(rows) <= b.rows->bytes(); });
  b.total_rows = b.capacity * per_row;
  if (!b.scales) b.scales = b.rows;
  b.scale_bytes = own_scales ? 0 : scale_bytes(b.capacity);
  b.scale_data = call.scale_count > 0 ? b.scales->data() : nullptr;
  b.scale_ld = args.scale_layout == ScaleLayout::column ? scale_ld(call, b.total_rows) : 0;
  b.landed = b.rows->data() + b.scale_bytes;
  b.out.capacity = b.capacity;
  if (call.makes_route()) b.route->capacity = b.capacity;
  return b;
}

DispatchParts dispatch_parts(const DispatchArgs& args, const DispatchCall& call, const DispatchBlocks& b,
                             const engine::WindowView& window, const Memory& memory) {
  const RouteTables& tables = b.route->tables;
  const ScaleShape scale_shape{call.scale_count, size_of(call.scale_type), args.scale_layout};
  DispatchParts parts;
  parts.plan = {.topology = window.topology, .route = tables, .ids = args.expert_ids.data,
                .ids_are_64_bit = args.expert_ids.dtype == DataType::int64,
                .rank_mask = args.rank_mask.as<std::uint8_t>(), .checks = call.checks, .report = b.report.get()};
  if (call.routing != Routing::rank_mask) parts.plan.rank_mask = nullptr;
  parts.publish = publish_args(window, args.channel, call.digest, b.report.get());
  parts.publish.sent = call.makes_route() ? tables.sent : nullptr;
  parts.publish.expert_counts = call.topk > 0;
  parts.publish.checked = call.checks && call.makes_route();
  parts.publish.made = call.makes_route() ? nullptr : tables.outcome;
  ControlRecord& record = parts.publish.record;
  record.rows = memory.place_of(b.landed);
  record.scales = memory.place_of(b.scale_data);
  record.ids = memory.place_of(call.makes_route() ? tables.local_ids : nullptr);
  record.weights = memory.place_of(call.weights ? b.arrived_weights : nullptr);
  record.scale_stride = b.scale_ld;
  record.capacity = b.capacity;
  parts.agree = agree_args(window, args.channel, OperationKind::dispatch, b.report.get());
  parts.agree.route = tables;
  parts.agree.placement = b.placement;
  parts.agree.makes_route = call.makes_route();
  parts.agree.drop = args.on_overflow == OnOverflow::drop;
  parts.move = {.topology = window.topology, .addresses = window.addresses, .route = tables, .placement = b.placement,
                .rows = args.rows.as<std::byte>(), .row_stride = call.row_stride, .row_bytes = call.row_bytes,
                .elements = call.hidden, .dtype = call.in_type, .quantise = args.quantise,
                .scales = args.scales.as<std::byte>(), .scale_row_stride = call.scale_row_stride,
                .scale_stride = call.scale_stride, .scale_shape = scale_shape,
                .weights = call.weights ? args.weights.as<float>() : nullptr,
                .makes_route = call.makes_route(), .report = b.report.get()};
  const bool output = args.output.given(), padded = args.layout == Layout::padded;
  const auto stride = [&](std::size_t d) { return args.output.strides[d] * size_of(call.out_type); };
  parts.finish = {.topology = window.topology, .route = tables, .placement = b.placement, .outputs = b.out,
                  .makes_route = call.makes_route(), .landed = b.landed,
                  .rows = output ? args.output.as<std::byte>() : b.landed, .row_bytes = call.row_bytes,
                  .row_stride = output ? stride(padded ? 1 : 0) : call.row_bytes,
                  .expert_stride = output ? stride(0) : b.capacity * call.row_bytes, .scales = b.scale_data,
                  .scale_shape = scale_shape, .scale_ld = b.scale_ld, .zero_padding = args.zero_padding,
                  .exact = args.counts == Counts::exact, .arrived_weights = call.weights ? b.arrived_weights : nullptr,
                  .expert_load = args.expert_load.as<std::int32_t>(), .waited = args.waited.as<std::int64_t>(),
                  .report = b.report.get()};
  parts.ready = b.ready;
  return parts;
}

DispatchResult dispatch_result(const DispatchArgs& args, const DispatchCall& call, const DispatchBlocks& b,
                               const Topology& topology) {
  DispatchResult result;
  const std::int64_t local = topology.local_experts(topology.rank);
  const bool packed = args.layout == Layout::packed, padded = args.layout == Layout::padded;
  const auto rows_view = [&](auto& view, void* data, DataType type, std::int64_t inner, const auto& owner) {
    view = padded ? TensorView(data, type, local, b.capacity, inner) : TensorView(data, type, b.total_rows, inner);
    view.owner = owner;
  };
  if (args.output.given()) {
    result.rows = args.output;
    result.rows.shape[padded ? 1 : 0] = b.capacity;
  } else {
    rows_view(result.rows, b.landed, call.out_type, call.hidden, b.rows);
  }
  if (call.scale_count > 0) {
    rows_view(result.scales, b.scale_data, call.scale_type, call.scale_count, b.scales);
    if (args.scale_layout == ScaleLayout::column) {
      auto& strides = result.scales.strides;
      strides = padded ? std::array<std::int64_t, 3>{b.capacity, 1, b.scale_ld} : std::array<std::int64_t, 3>{1, b.scale_ld, 0};
    }
  }
  const auto small = [&](TensorView view) {
    view.owner = b.outputs;
    return view;
  };
  if (b.out.local_ids) result.local_ids = small({b.out.local_ids, DataType::int32, b.total_rows, call.topk});
  if (b.out.weights) {
    result.weights = packed   ? small({b.out.weights, DataType::fp32, b.total_rows, call.topk})
                     : padded ? small({b.out.weights, DataType::fp32, local, b.capacity})
                              : small({b.out.weights, DataType::fp32, b.total_rows});
  }
  result.num_rows = small({b.out.num_rows, DataType::int64, 1});
  result.counts = small({b.out.counts, DataType::int32, local});
  result.aligned_counts = small({b.out.aligned_counts, DataType::int32, local});
  result.offsets = small({b.out.offsets, DataType::int64, b.out.offset_count});
  result.dropped = small({b.out.dropped, DataType::int64, 1});
  result.route = Route(b.route);
  return result;
}

// Counts::exact: the host waits until OPEN has told them, and the result shrinks to what came.
void learn_counts(const DispatchArgs& args, const DispatchCall& call, const DispatchBlocks& b, const Topology& topology,
                  const EventState& counts, DispatchResult& result) {
  const Report& report = *b.report;
  try {
    counts.wait(std::chrono::milliseconds(-1));
  } catch (const CapacityError& error) {
    if (b.holders.empty() || report.verdict.rank != topology.rank) throw;
    throw CapacityError(fmt::format("{} (in the arena of this rank {})", error.what(), b.holders), error.rank());
  }
  result.host.rows = report.rows;
  result.host.per_source.assign(report.per_source, report.per_source + topology.ranks);
  if (call.topk > 0) {
    const std::int64_t local = topology.local_experts(topology.rank);
    result.host.per_expert.assign(report.per_expert, report.per_expert + local);
  }
  if (call.makes_route()) {
    b.route->packed_rows_known = report.packed_rows;
    if (args.layout != Layout::padded) b.route->rows_known = report.rows;
  }
  if (args.layout == Layout::padded) return;
  for (TensorView* view : {&result.rows, &result.scales, &result.local_ids, &result.weights}) {
    if (view->given()) view->shape[0] = report.rows;
  }
  if (!args.output.given()) b.rows->shrink(b.scale_bytes + report.rows * call.row_bytes, b.ready);
}

}  // namespace

// Whatever goes wrong before the lane has the script is a refusal.
DispatchResult CommunicatorState::dispatch(const DispatchArgs& args, void* stream) {
  const std::string& call_name = where(OperationKind::dispatch);
  Admission admission(*this, args.channel, call_name);
  throw_if_failed(OperationKind::dispatch, args.channel);
  TraceCall trace = trace_call(traced_, args.channel);
  const std::int64_t number = args.channel * routes_of_channel + admission.next_call();
  DispatchCall call;
  DispatchBlocks blocks;
  DispatchResult result;
  std::shared_ptr<engine::LaneEvent> counts;
  std::unique_ptr<Script> script;
  Context about;
  const Caller caller = caller_of(stream, args.run_on, call_name, args.counts == Counts::exact);
  try {
    throw_earlier_fault(args.channel);
    check_route(args.route, call_name);
    call = check_call(args, config_, call_name);
    blocks = take_dispatch_blocks(args, call, number, config_, *memory_);
    blocks.report = engine_->make_report();
    trace.tokens = call.tokens;
    trace.row_bytes = call.row_bytes;
    blocks.report->trace = trace;
    blocks.ready = next_event(args.channel);
    if (call.makes_route()) {
      blocks.route->made = blocks.ready;
      blocks.route->report = blocks.report;
    }
    if (caller.captured) call.checks = false;  // nobody would hear what they find
    DispatchParts parts = dispatch_parts(args, call, blocks, engine_->window(), *memory_);
    parts.common.caller = caller;
    parts.common.num_sms = args.num_sms;
    parts.common.bytes = call.tokens * call.row_bytes;
    parts.common.report = blocks.report;
    hold(args, call, blocks, stream, parts.common);
    result = dispatch_result(args, call, blocks, config_.topology);
    about = context(OperationKind::dispatch, args.channel, call.makes_route() ? nullptr : blocks.route.get());
    about.capacity_from = call.capacity_from;
    result.ready = Event(std::make_shared<EventState>(blocks.ready, blocks.report, about));
    if (args.counts == Counts::exact) {
      parts.counts = counts = engine_->make_event();
      result.host.per_source.reserve(static_cast<std::size_t>(config_.topology.ranks));
      if (call.topk > 0) result.host.per_expert.reserve(static_cast<std::size_t>(config_.topology.local_experts(config_.topology.rank)));
    } else if (call.checks && call.makes_route()) {
      channels_[static_cast<std::size_t>(args.channel)]->checking.push_back(result.ready.state());
    }
    script = dispatch_script(std::move(parts));
  } catch (...) {
    refuse(OperationKind::dispatch, call_name, args.channel, caller, {blocks.ready, counts});
  }
  engine_->lane(args.channel).submit(std::move(script));
  if (!counts) return result;
  try {
    learn_counts(args, call, blocks, config_.topology, EventState(counts, blocks.report, about), result);
  } catch (const ArgumentError& error) {  // this rank's own ids
    log(LogLevel::info, error.what());
    throw;
  }
  return result;
}

// What the call waits for, and what is kept until it has ended.
void CommunicatorState::hold(const DispatchArgs& args, const DispatchCall& call, const DispatchBlocks& blocks, void* stream,
                             Common& common) {
  std::shared_ptr<engine::LaneEvent> called;  // what no event stands for is there when the caller's stream gets here
  const bool streams = engine_->window().event_on != nullptr && !common.caller.runs;
  if (streams && !(args.ids_after.state() && args.after.state())) called = engine_->window().event_on(stream);
  if (args.ids_after.state()) common.first.push_back({args.ids_after.state()->lane_event(), true});
  if (args.after.state()) common.data.push_back({args.after.state()->lane_event(), true});
  if (called) (args.ids_after.state() ? common.data : common.first).push_back({called, false});
  for (const auto& block : {blocks.rows, blocks.scales, blocks.outputs, blocks.temporary, blocks.route->block}) {
    if (call.makes_route() || block != blocks.route->block) depend_on(common, *block);
    use_until(block, blocks.ready, common);
    if (!common.caller.captured && block != blocks.temporary && block != blocks.route->block) block->used_on(stream);
  }
  if (!call.makes_route() && blocks.route->channel != args.channel) common.first.push_back({blocks.route->made, true});
  for (const ConstTensorView& view : {args.rows, args.scales, args.expert_ids, args.rank_mask, args.weights,
                                      ConstTensorView(args.output), ConstTensorView(args.expert_load),
                                      ConstTensorView(args.waited)}) {
    use_until(view, blocks.ready, common);
  }
}

}  // namespace sluice::core
