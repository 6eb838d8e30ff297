// From the arguments of one combine to its blocks, its script and its result.
#include <algorithm>
#include <utility>

#include <sluice/errors.h>

#include "core/communicator_state.h"

namespace sluice::core {

namespace {

// What one combine takes from the arena.
struct CombineBlocks {
  std::shared_ptr<HeldBlock> sums, output, temporary;
  bool gathers_rows = false;
  DataType sum_type = DataType::bf16;  // of what peers read
  std::byte* rows = nullptr;           // what peers read
  std::int64_t row_stride = 0;
  std::int64_t readable_rows = 0;      // capacity for the check after OPEN
  float* weights = nullptr;
  float* values_sent = nullptr;
  std::byte* out = nullptr;
  float* values_out = nullptr;
  Placement placement;
};

// Packed rows that lie in the arena are read where they lie; everything else goes through a temporary
// block in packed order.
CombineBlocks take_combine_blocks(const CombineArgs& args, const CombineCall& call, const Topology& topology, Memory& memory) {
  CombineBlocks b;
  const RouteState& route = *args.route.state();
  const RouteTables& tables = route.tables;
  const bool packed = tables.layout == Layout::packed;
  const std::int64_t packed_rows = route.packed_rows_known >= 0 ? route.packed_rows_known
                                   : packed                     ? std::min(call.rows, tables.packed_limit)
                                                                : tables.packed_limit;
  b.sum_type = !packed && args.single_rounding ? DataType::fp32 : call.dtype;
  // Peers read what is published: only rows that lie in one block to their end.
  const std::int64_t extent = call.rows == 0 ? 0 : (call.rows - 1) * call.row_stride + call.hidden * size_of(call.dtype);
  b.gathers_rows = !packed || (args.rows.data && !memory.covers(args.rows.data, extent));
  b.rows = const_cast<std::byte*>(args.rows.as<std::byte>());
  b.row_stride = call.row_stride;
  b.readable_rows = call.rows;
  if (b.gathers_rows) {
    b.row_stride = call.hidden * size_of(b.sum_type);
    b.sums = memory.allocate(packed_rows * b.row_stride, Owner::temporary, Arena::End::low);
    b.rows = b.sums->data();
  }
  b.temporary = memory.allocate_for(Owner::temporary, [&](Slices& slices) {
    lay_out(slices, b.placement, topology.ranks);
    b.weights = slices.take<float>(packed && call.weights ? packed_rows : 0);
    b.values_sent = slices.take<float>(call.values ? packed_rows * tables.topk : 0);
  });
  const std::int64_t out_bytes = args.output.given() ? 0 : align_up(tables.tokens * call.hidden * size_of(call.dtype), Arena::unit);
  const std::int64_t value_bytes = call.values ? tables.tokens * tables.topk * 4 : 0;
  b.output = memory.allocate(out_bytes + value_bytes, Owner::result, Arena::End::low);
  b.out = args.output.given() ? args.output.as<std::byte>() : b.output->data();
  b.values_out = call.values ? reinterpret_cast<float*>(b.output->data() + out_bytes) : nullptr;
  return b;
}

GatherArgs gather_args(const CombineArgs& args, const CombineCall& call, const CombineBlocks& b, const Topology* topology) {
  const RouteState& route = *args.route.state();
  GatherArgs gather;
  gather.topology = topology;
  gather.route = route.tables;
  gather.rows = args.rows.as<std::byte>();
  gather.rows_given = call.rows;
  gather.row_stride = call.row_stride;
  gather.expert_stride = call.expert_stride;
  gather.dtype = call.dtype;
  gather.sum_type = b.sum_type;
  gather.elements = call.hidden;
  gather.weights = call.weights ? args.weights.as<float>() : nullptr;
  gather.values = call.values ? args.values.as<float>() : nullptr;
  gather.rows_out = b.gathers_rows ? b.rows : nullptr;
  gather.weights_out = call.weights && route.tables.layout == Layout::packed ? b.weights : nullptr;
  gather.values_out = call.values ? b.values_sent : nullptr;
  return gather;
}

ReduceArgs reduce_args(const CombineArgs& args, const CombineCall& call, const CombineBlocks& b,
                       const engine::WindowView& window, Report* report) {
  const RouteTables& tables = args.route.state()->tables;
  ReduceArgs reduce;
  reduce.topology = window.topology;
  reduce.addresses = window.addresses;
  reduce.route = tables;
  reduce.placement = b.placement;
  reduce.in_type = b.sum_type;
  reduce.out_type = call.dtype;
  reduce.elements = call.hidden;
  for (int i = 0; i < 2; ++i) {
    reduce.bias[i] = args.bias[i].as<std::byte>();
    reduce.bias_stride[i] = args.bias[i].strides[0] * size_of(call.dtype);
  }
  reduce.out = b.out;
  reduce.out_stride = (args.output.given() ? args.output.strides[0] : call.hidden) * size_of(call.dtype);
  reduce.weighted = call.weights && tables.layout == Layout::packed;
  reduce.values = b.values_out;
  reduce.waited = args.waited.as<std::int64_t>();
  reduce.report = report;
  return reduce;
}

CombineParts combine_parts(const CombineArgs& args, const CombineCall& call, const CombineBlocks& b,
                           const engine::WindowView& window, const Memory& memory, Report* report) {
  const RouteTables& tables = args.route.state()->tables;
  CombineParts parts;
  parts.gather = gather_args(args, call, b, window.topology);
  parts.gathers = b.gathers_rows || parts.gather.weights_out || parts.gather.values_out;
  parts.publish = publish_args(window, args.channel, call.digest, report);
  parts.publish.made = tables.outcome;
  ControlRecord& record = parts.publish.record;
  record.rows = memory.place_of(b.rows);
  record.row_stride = b.row_stride;
  record.weights = memory.place_of(parts.gather.weights_out);
  record.values = memory.place_of(parts.gather.values_out);
  record.capacity = b.readable_rows;
  parts.agree = agree_args(window, args.channel, OperationKind::combine, report);
  parts.agree.route = tables;
  parts.agree.placement = b.placement;
  parts.reduce = reduce_args(args, call, b, window, report);
  return parts;
}

CombineResult combine_result(const CombineArgs& args, const CombineCall& call, const CombineBlocks& b) {
  const RouteTables& tables = args.route.state()->tables;
  CombineResult result;
  if (args.output.given()) {
    result.rows = args.output;
  } else {
    result.rows = TensorView(b.out, call.dtype, tables.tokens, call.hidden);
    result.rows.owner = b.output;
  }
  if (call.values) {
    result.values = TensorView(b.values_out, DataType::fp32, tables.tokens, tables.topk);
    result.values.owner = b.output;
  }
  return result;
}

}  // namespace

// As dispatch: whatever goes wrong before the lane has the script is a refusal.
CombineResult CommunicatorState::combine(const CombineArgs& args, void* stream) {
  const std::string& call_name = where(OperationKind::combine);
  Admission admission(*this, args.channel, call_name);
  throw_if_failed(OperationKind::combine, args.channel);
  admission.next_call();  // routes are numbered alike on all ranks
  TraceCall trace = trace_call(traced_, args.channel);
  CombineResult result;
  std::shared_ptr<engine::LaneEvent> ready, inputs_free;
  std::unique_ptr<Script> script;
  const Caller caller = caller_of(stream, args.run_on, call_name, false);
  try {
    throw_earlier_fault(args.channel);
    check_route(args.route, call_name);
    const CombineCall call = check_call(args, config_, call_name);
    const CombineBlocks b = take_combine_blocks(args, call, config_.topology, *memory_);
    const RouteState& route = *args.route.state();
    const std::shared_ptr<Report> report = engine_->make_report();
    trace.tokens = route.tables.tokens;
    trace.row_bytes = call.hidden * size_of(b.sum_type);
    report->trace = trace;
    CombineParts parts = combine_parts(args, call, b, engine_->window(), *memory_, report.get());
    Common& common = parts.common;
    common.caller = caller;
    common.num_sms = args.num_sms;
    common.bytes = route.tables.tokens * call.hidden * size_of(call.dtype);
    common.report = report;
    parts.ready = ready = next_event(args.channel);
    parts.inputs_free = inputs_free = next_event(args.channel);
    const bool streams = engine_->window().event_on != nullptr && !caller.runs;
    if (args.after.state()) common.data.push_back({args.after.state()->lane_event(), true});
    else if (const auto called = streams ? engine_->window().event_on(stream) : nullptr) common.data.push_back({called, false});
    if (route.channel != args.channel) common.first.push_back({route.made, true});
    for (const auto& block : {b.sums, b.output, b.temporary}) {
      if (!block) continue;
      depend_on(common, *block);
      use_until(block, inputs_free, common);
    }
    if (!caller.captured) b.output->used_on(stream);
    use_until(route.block, inputs_free, common);
    for (const ConstTensorView& view : {args.rows, args.weights, args.values, args.bias[0], args.bias[1],
                                        ConstTensorView(args.output), ConstTensorView(args.waited)}) {
      use_until(view, inputs_free, common);
    }
    result = combine_result(args, call, b);
    const Context about = context(OperationKind::combine, args.channel, &route);
    result.ready = Event(std::make_shared<EventState>(ready, report, about));
    result.inputs_free = Event(std::make_shared<EventState>(inputs_free, report, about));
    script = combine_script(std::move(parts));
  } catch (...) {
    refuse(OperationKind::combine, call_name, args.channel, caller, {ready, inputs_free});
  }
  engine_->lane(args.channel).submit(std::move(script));
  return result;
}

}  // namespace sluice::core
