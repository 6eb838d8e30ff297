#include "protocol/footprint.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::protocol {

using core::Stage;

Footprints::Footprints(Scenario& scenario) : scenario_(scenario), world_(scenario.world()) {
  steps_.resize(static_cast<std::size_t>(scenario.processes()));
  recorders_.resize(world_.machine().taken());
  for (int p = 0; p < world_.lanes(); ++p) {
    const StepLane& lane = world_.lane(p);
    int number = -1;
    const core::Script* last = nullptr;
    for (const LaneStep& at : lane.steps()) {
      number += at.script != last;
      last = at.script;
      Step step;
      if (const auto* const run = std::get_if<core::Run>(&at.step()))
        add_run(step, lane, *at.script, number, *run);
      if (const auto* const record = std::get_if<core::Record>(&at.step())) {
        const auto& event = static_cast<const StepEvent&>(*record->event);
        recorders_[world_.machine().offset_of(event.word())] = {
            p, static_cast<int>(steps_[static_cast<std::size_t>(p)].size())};
      }
      if (const auto* const dependency = std::get_if<core::Depend>(&at.step())) {
        if (!dependency->guards_block || !world_.mutation().ignores_block_events)
          step.after = static_cast<const StepEvent*>(dependency->event.get());
      }
      step.await = std::get_if<core::Await>(&at.step());
      for (int peer = 0; step.await && peer < lane.ranks(); ++peer) {
        if (peer != lane.rank())
          step.touches.push_back(
              {lane.flag_at(step.await->stage, peer), lane.flag_at(step.await->stage, peer) + 1, false});
      }
      steps_[static_cast<std::size_t>(p)].push_back(std::move(step));
    }
  }
  for (int r = 0; r < scenario.plan().ranks; ++r) {
    const int p = world_.lanes() + r;
    for (int i = 0; i < scenario.steps(p); ++i) {
      const CallerStep& caller = scenario.caller_step(r, i);
      Step step;
      add_caller(step, caller);
      step.after = caller.after;
      if (caller.happens) recorders_[world_.machine().offset_of(caller.happens->word())] = {p, i};
      steps_[static_cast<std::size_t>(p)].push_back(std::move(step));
    }
  }
  find_conflicts();
}

void Footprints::add(std::vector<Range>& ranges, const void* begin, std::int64_t bytes, bool writes) const {
  if (!begin || bytes <= 0 || !world_.machine().contains(begin)) return;
  const std::uint32_t at = world_.machine().offset_of(begin);
  ranges.push_back({at, at + static_cast<std::uint32_t>(bytes), writes});
}

// The tables lie one behind the other (core::lay_out): plan's, agree's, the peers'.
void Footprints::add_route(Step& step, const core::RouteTables& route, bool plan_writes,
                           bool agree_writes) const {
  add(step.touches, route.outcome, sizeof(core::Outcome), plan_writes || agree_writes);
  const auto* const first = reinterpret_cast<const std::byte*>(route.expert_of);
  const auto* const second = reinterpret_cast<const std::byte*>(route.packed_base);
  const auto* const third = reinterpret_cast<const std::byte*>(route.local_ids);
  add(step.touches, first, second - first, plan_writes);
  if (!plan_writes) add(step.touches, second, third - second, agree_writes);
}

const core::PublishArgs* Footprints::publish_of(int rank, int channel, int number) const {
  const auto& scripts = world_.lane(rank, channel).scripts();
  if (number >= static_cast<int>(scripts.size())) return nullptr;
  for (const core::Step& step : scripts[static_cast<std::size_t>(number)]->steps) {
    const auto* const run = std::get_if<core::Run>(&step);
    if (run && std::holds_alternative<core::PublishArgs>(run->kernel))
      return &std::get<core::PublishArgs>(run->kernel);
  }
  return nullptr;
}

void Footprints::add_run(Step& step, const StepLane& lane, const core::Script& script, int number,
                         const core::Run& run) {
  add(step.touches, script.report.get(), sizeof(core::Report), true);
  add(step.touches, script.report->per_source, 8 * (lane.ranks() + 1), true);
  for (int peer = 0; peer < lane.ranks(); ++peer) {
    if (peer == lane.rank()) continue;
    if (run.tail.resets) {
      const std::uint32_t flag = lane.flag_at(run.tail.reset, peer);
      step.touches.push_back({flag, flag + 1, true});
    }
    if (run.tail.signals) {
      const std::uint32_t flag = world_.lane(peer, lane.channel()).flag_at(run.tail.signal, lane.rank());
      step.sends.push_back({flag, flag + 1, true});
      step.signals[static_cast<int>(run.tail.signal)] = true;
    }
  }
  add_kernel(step, lane, number, run.kernel);
}

void Footprints::add_kernel(Step& step, const StepLane& lane, int number, const core::KernelArgs& kernel) {
  const int me = lane.rank(), ranks = lane.ranks();
  const auto outputs = [&](const core::DispatchOutputs& out) {
    const auto* const begin = reinterpret_cast<const std::byte*>(out.num_rows);
    const auto* const end = reinterpret_cast<const std::byte*>(out.local_ids + out.capacity * ranks);
    add(step.touches, begin, end - begin, true);
  };
  const auto placement = [&](const core::Placement& p, bool writes) {
    const auto* const begin = reinterpret_cast<const std::byte*>(p.rows);
    if (begin) add(step.touches, begin, reinterpret_cast<const std::byte*>(p.lateness_ns + ranks) - begin, writes);
  };
  if (const auto* const plan = std::get_if<core::PlanArgs>(&kernel)) {
    add_route(step, plan->route, true, false);
  } else if (const auto* const publish = std::get_if<core::PublishArgs>(&kernel)) {
    add(step.touches, publish->sent, 8 * ranks, false);
    add(step.touches, publish->made, sizeof(core::Outcome), false);
    for (int r = 0; r < ranks; ++r) {
      add(r == me ? step.touches : step.sends,
          world_.window(r).base + world_.page().record_offset(lane.channel(), me), world_.page().record_bytes,
          true);
    }
  } else if (const auto* const agree = std::get_if<core::AgreeArgs>(&kernel)) {
    add(step.touches, world_.window(me).base + world_.page().record_offset(lane.channel(), 0),
        ranks * world_.page().record_bytes, false);
    add_route(step, agree->route, false, true);
    placement(agree->placement, true);
  } else if (const auto* const move = std::get_if<core::MoveArgs>(&kernel)) {
    add_route(step, move->route, false, false);
    placement(move->placement, false);
    for (int r = 0; r < ranks; ++r) {
      const core::PublishArgs* const theirs = publish_of(r, lane.channel(), number);
      if (!theirs || theirs->record.rows.rank < 0) continue;
      std::vector<Range>& to = r == me ? step.touches : step.sends;
      add(to, world_.window(r).base + theirs->record.rows.offset + me * hidden * 2, hidden * 2, true);
      add(to, world_.window(r).base + theirs->record.ids.offset + me * ranks * 4, ranks * 4, true);
    }
  } else if (const auto* const finish = std::get_if<core::FinishArgs>(&kernel)) {
    add_route(step, finish->route, false, false);
    placement(finish->placement, false);
    add(step.touches, finish->route.local_ids, ranks * ranks * 4, false);
    outputs(finish->outputs);
  } else if (const auto* const gather = std::get_if<core::GatherArgs>(&kernel)) {
    add_route(step, gather->route, false, false);
    add(step.touches, gather->rows, ranks * hidden * 2, false);
    add(step.sends, gather->rows_out, ranks * hidden * 2, true);
  } else if (const auto* const reduce = std::get_if<core::ReduceArgs>(&kernel)) {
    add_route(step, reduce->route, false, false);
    placement(reduce->placement, false);
    for (int r = 0; r < ranks; ++r) {
      const core::PublishArgs* const theirs = publish_of(r, lane.channel(), number);
      if (!theirs || theirs->record.rows.rank < 0) continue;
      add(step.touches, world_.window(r).base + theirs->record.rows.offset + me * hidden * 2, hidden * 2,
          false);
    }
    add(step.touches, reduce->out, hidden * 2, true);
  }
}

void Footprints::add_caller(Step& step, const CallerStep& caller) const {
  const bool writes = caller.kind == CallerStep::write_inputs;
  add(step.touches, caller.rows, caller.rows_bytes, writes);
  add(step.touches, caller.report, sizeof(core::Report), false);
  add(step.touches, caller.made_by, sizeof(core::Report), false);
  if (caller.kind != CallerStep::check_dispatch) return;
  const auto* const begin = caller.outputs.num_rows.as<std::byte>();
  const auto* const ids = caller.outputs.local_ids.as<std::int32_t>();
  add(step.touches, begin,
      reinterpret_cast<const std::byte*>(ids + caller.outputs.local_ids.elements()) - begin, false);
}

bool Footprints::conflicts(const std::vector<Range>& a, const std::vector<Range>& b) const {
  for (const Range& x : a) {
    for (const Range& y : b) {
      if ((x.writes || y.writes) && x.begin < y.end && y.begin < x.end) return true;
    }
  }
  return false;
}

void Footprints::find_conflicts() {
  conflicts_.resize(steps_.size());
  for (std::size_t p = 0; p < steps_.size(); ++p) {
    for (const Step& step : steps_[p]) {
      auto& per_process = conflicts_[p].emplace_back(steps_.size());
      for (std::size_t q = 0; q < steps_.size(); ++q) {
        for (std::size_t j = 0; q != p && j < steps_[q].size(); ++j) {
          if (conflicts(step.touches, steps_[q][j].touches) || conflicts(step.touches, steps_[q][j].sends)) {
            per_process[q].push_back(static_cast<int>(j));
          }
        }
      }
    }
  }
}

std::string Footprints::check(int process, int index, std::size_t stores_before) const {
  const Step& step = at(process, index);
  const auto declared = [](const std::vector<Range>& ranges, std::uint32_t begin, std::uint32_t end) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const Range& r) { return r.writes && begin < r.end && r.begin < end; });
  };
  for (const std::uint32_t word : world_.changed) {
    if (!declared(step.touches, word * 8, word * 8 + 8)) {
      return fmt::format("{} writes {}, which is not declared", scenario_.describe_step(process, index),
                         describe(world_, word * 8));
    }
  }
  if (process >= world_.lanes()) return {};
  const Machine::Buffer& buffer = world_.machine().buffer(process);
  for (std::size_t i = stores_before; i < buffer.size(); ++i) {
    const Entry& store = world_.machine().entry(buffer[i]);
    if (store.is_reset || declared(step.sends, store.at, store.at + store.bytes)) continue;
    return fmt::format("{} sends to {}, which is not declared", scenario_.describe_step(process, index),
                       describe(world_, store.at));
  }
  return {};
}

}  // namespace sluice::protocol
