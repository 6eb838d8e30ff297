#include "protocol/scenario.h"

#include <fmt/format.h>

#include <bit>

#include "core/sentences.h"

namespace sluice::protocol {

float row_value(int ranks, int source, int number) {
  return static_cast<float>(1 + (source + ranks * number) % 60);
}
float input_value(int ranks, int source, int dispatch, int rank, int combine) {
  return row_value(ranks, source, dispatch) + static_cast<float>(rank + 1 + combine % 2);
}
float sum_value(int ranks, int source, int dispatch, int combine) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += input_value(ranks, source, dispatch, r, combine);
  return sum;
}
int expert_of_slot(int ranks, int slot, int number) { return (slot + number) % ranks; }
std::uint16_t bf16_of(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}
float float_of(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

bool looks_well(const core::Report& report) {
  return !report.failure.failed &&
         (report.verdict.outcome == core::Outcome::go || report.verdict.outcome == core::Outcome::pending);
}

Scenario::Scenario(const Plan& plan) : plan_(plan) {
  Mutation mutation = plan.mutation;
  mutation.edit = [this](core::Script& script, int rank) { edit(script, rank); };
  const std::size_t operations = plan.ops.size() * static_cast<std::size_t>(plan.ranks * plan.channels);
  const std::size_t spare = operations * (sizeof(core::Report) + 192) + 4096;
  world_ = std::make_unique<StepWorld>(
      WorldShape{plan.ranks, plan.channels, plan.ranks, plan.arena_bytes, spare}, mutation);
  world_->all_must_succeed = plan.refusing_rank < 0;
  world_->host_waits = [this](const StepEvent& event) { return foresee_counts(event); };
  callers_.resize(static_cast<std::size_t>(plan.ranks));
  counts_known_.resize(static_cast<std::size_t>(plan.ranks));
  CommunicatorOptions options;
  options.engine = "step";
  options.max_tokens = 1;
  options.experts = plan.ranks;
  options.hidden = hidden;
  options.topk = plan.ranks;
  options.channels = plan.channels;
  options.arena_bytes = 4096;  // the window's counts
  options.checks = Checks::on;
  for (int r = 0; r < plan.ranks; ++r) {
    const core::Config config = core::resolve(options, r, plan.ranks, engine_bytes(plan.channels));
    comms_.push_back(std::make_unique<core::CommunicatorState>(
        config, std::vector<int>(static_cast<std::size_t>(plan.ranks)),
        std::make_unique<StepEngine>(*world_, r)));
  }
  for (int r = 0; r < plan.ranks; ++r) call_all(r);
  world_->machine().capture();
}

void Scenario::edit(core::Script& script, int rank) {
  auto& known = counts_known_[static_cast<std::size_t>(rank)];
  if (known) script.steps.insert(script.steps.begin(), core::Depend{known, false});
  if (plan_.mutation.edit) plan_.mutation.edit(script, rank);
  for (const core::Step& step : script.steps) {
    const auto* const dependency = std::get_if<core::Depend>(&step);
    reused_blocks_ += dependency && dependency->guards_block;
  }
}

// The counts are told to the host before they are known, and its next script waits for them instead.
bool Scenario::foresee_counts(const StepEvent& event) {
  const core::Script& script = *world_->lane(calling_rank_, calling_channel_).scripts().back();
  for (const core::Step& step : script.steps) {
    const auto* const record = std::get_if<core::Record>(&step);
    if (!record || record->event.get() != &event) continue;
    counts_known_[static_cast<std::size_t>(calling_rank_)] = record->event;
    waiting_for_counts_ = script.report.get();
    waiting_for_counts_->rows = waiting_for_counts_->packed_rows = plan_.ranks;
    return true;
  }
  return true;
}

bool Scenario::refuses(int rank, int channel, int k) const {
  return rank == plan_.refusing_rank && channel == 0 && k == plan_.refused_operation;
}

std::shared_ptr<StepEvent> Scenario::used_by_caller(int) {
  events_.push_back(world_->make_event());
  return events_.back();
}

namespace {

// Without what it keeps alive.
TensorView bare(TensorView view) {
  view.owner = nullptr;
  return view;
}

const StepEvent* step_event(const Event& event) {
  return static_cast<const StepEvent*>(event.state()->lane_event().get());
}

void hold_until(const TensorView& view, const std::shared_ptr<StepEvent>& event) {
  const auto block = std::static_pointer_cast<const core::HeldBlock>(view.owner);
  std::const_pointer_cast<core::HeldBlock>(block)->used_until(event);
}

}  // namespace

// In host order: what the caller does with the last result of a channel stands before its next call there.
void Scenario::call_all(int rank) {
  std::vector<Channel> channels(static_cast<std::size_t>(plan_.channels));
  auto& caller = callers_[static_cast<std::size_t>(rank)];
  for (std::size_t k = 0; k < plan_.ops.size(); ++k) {
    for (int i = 0; i < plan_.channels; ++i) {
      const auto r = static_cast<std::size_t>(rank);
      const int c = plan_.channel_order.empty() ? i : plan_.channel_order[r][static_cast<std::size_t>(i)];
      Channel& channel = channels[static_cast<std::size_t>(c)];
      for (CallerStep& step : channel.pending) caller.push_back(step);
      channel.pending.clear();
      calling_rank_ = rank;
      calling_channel_ = c;
      if (plan_.ops[k] == 'D')
        call_dispatch(rank, c, static_cast<int>(k), channel);
      else
        call_combine(rank, c, static_cast<int>(k), channel);
      const bool needed = k + 1 < plan_.ops.size() && plan_.ops[k + 1] == 'C';
      if (!needed) channel.dispatch = {};
    }
  }
  for (Channel& channel : channels) {
    for (CallerStep& step : channel.pending) caller.push_back(step);
  }
}

void Scenario::call_dispatch(int rank, int channel, int k, Channel& state) {
  const int number = k * plan_.channels + channel, ranks = plan_.ranks;
  rows_.emplace_back(new std::uint16_t[hidden]);
  std::fill_n(rows_.back().get(), hidden, bf16_of(row_value(ranks, rank, number)));
  ids_.emplace_back(new std::int32_t[static_cast<std::size_t>(ranks)]);
  for (int i = 0; i < ranks; ++i) ids_.back()[static_cast<std::size_t>(i)] = expert_of_slot(ranks, i, number);
  DispatchArgs args;
  args.rows = ConstTensorView(rows_.back().get(), DataType::bf16, 1, hidden);
  args.expert_ids = ConstTensorView(ids_.back().get(), DataType::int32, 1, ranks);
  args.counts = plan_.exact ? Counts::exact : Counts::bounded;
  args.channel = channel;
  state.dispatch = {};
  if (refuses(rank, channel, k)) {
    args.rows.dtype = DataType::int64;
    try {
      comms_[static_cast<std::size_t>(rank)]->dispatch(args);
    } catch (const ArgumentError&) {
    }
    return;
  }
  waiting_for_counts_ = nullptr;
  state.dispatch = comms_[static_cast<std::size_t>(rank)]->dispatch(args);
  if (waiting_for_counts_) waiting_for_counts_->rows = waiting_for_counts_->packed_rows = 0;
  state.operation = number;
  state.report = world_->lane(rank, channel).scripts().back()->report.get();
  state.inputs_free = nullptr;
  const DispatchResult& d = state.dispatch;
  const auto consumed = used_by_caller(rank);
  hold_until(d.rows, consumed);
  hold_until(d.counts, consumed);
  CallerStep check{CallerStep::check_dispatch,
                   channel,
                   number,
                   step_event(d.ready),
                   consumed.get(),
                   state.report,
                   state.report,
                   number,
                   d.rows.as<std::uint16_t>(),
                   static_cast<std::uint32_t>(ranks * hidden * 2),
                   {}};
  check.outputs.local_ids = bare(d.local_ids);
  check.outputs.num_rows = bare(d.num_rows);
  check.outputs.counts = bare(d.counts);
  check.outputs.offsets = bare(d.offsets);
  state.pending.push_back(check);
}

void Scenario::call_combine(int rank, int channel, int k, Channel& state) {
  const int number = k * plan_.channels + channel, ranks = plan_.ranks;
  DispatchResult& d = state.dispatch;
  CombineArgs args;
  args.channel = channel;
  if (!d.route.valid() || refuses(rank, channel, k)) {
    try {
      comms_[static_cast<std::size_t>(rank)]->combine(args);
    } catch (const ArgumentError&) {
    }
    return;
  }
  TensorView inputs = d.rows;
  if (plan_.gathers) {
    if (!state.inputs)
      state.inputs = reinterpret_cast<std::uint16_t*>(
          world_->machine().take(static_cast<std::size_t>(ranks * hidden * 2)));
    inputs = TensorView(state.inputs, DataType::bf16, ranks, hidden);
  }
  const auto written = used_by_caller(rank), consumed = used_by_caller(rank);
  CallerStep write{CallerStep::write_inputs,
                   channel,
                   number,
                   state.inputs_free ? state.inputs_free : step_event(d.ready),
                   written.get(),
                   nullptr,
                   state.report,
                   state.operation,
                   inputs.as<std::uint16_t>(),
                   static_cast<std::uint32_t>(ranks * hidden * 2),
                   {}};
  callers_[static_cast<std::size_t>(rank)].push_back(write);
  args.rows = inputs;
  args.route = d.route;
  args.after =
      Event(std::make_shared<core::EventState>(written, std::make_shared<core::Report>(), core::Context{}));
  CombineResult result = comms_[static_cast<std::size_t>(rank)]->combine(args);
  hold_until(result.rows, consumed);
  const core::Report* const report = world_->lane(rank, channel).scripts().back()->report.get();
  state.inputs_free = plan_.frees_inputs_at_ready ? step_event(result.ready) : step_event(result.inputs_free);
  state.pending.push_back({CallerStep::check_combine,
                           channel,
                           number,
                           step_event(result.ready),
                           consumed.get(),
                           report,
                           state.report,
                           state.operation,
                           result.rows.as<std::uint16_t>(),
                           hidden * 2,
                           {}});
}

}  // namespace sluice::protocol
