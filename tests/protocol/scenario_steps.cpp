// What a caller does between the operations, and what it must see.
#include <fmt/format.h>

#include <algorithm>

#include "protocol/scenario.h"

namespace sluice::protocol {

int Scenario::steps(int process) const {
  if (process < world_->lanes()) return static_cast<int>(world_->lane(process).steps().size());
  return static_cast<int>(callers_[static_cast<std::size_t>(process - world_->lanes())].size());
}

bool Scenario::can_step(int process) const {
  if (process < world_->lanes()) return world_->lane(process).can_step();
  if (done(process)) return false;
  const CallerStep& step = caller_step(process - world_->lanes(), world_->machine().pc(process));
  return !step.after || step.after->state() != engine::LaneEvent::State::pending;
}

void Scenario::fail(const std::string& what) {
  if (world_->error.empty()) world_->error = what;
}

void Scenario::step(int process) {
  if (process < world_->lanes()) return world_->lane(process).step();
  Machine& machine = world_->machine();
  const int rank = process - world_->lanes(), ranks = plan_.ranks;
  const CallerStep& step = caller_step(rank, machine.pc(process));
  world_->changed.clear();
  if (step.kind == CallerStep::check_dispatch) check_dispatch(step, rank);
  if (step.kind == CallerStep::check_combine) check_combine(step, rank);
  if (step.kind == CallerStep::write_inputs && looks_well(*step.made_by)) {
    for (int s = 0; s < ranks; ++s) {
      std::fill_n(step.rows + s * hidden, hidden,
                  bf16_of(input_value(ranks, s, step.dispatch, rank, step.operation)));
    }
    machine.capture(step.rows, step.rows_bytes, world_->changed);
  }
  if (step.happens) step.happens->happen(engine::LaneEvent::State::happened);
  machine.set_pc(process, machine.pc(process) + 1);
}

namespace {

bool row_is(const std::uint16_t* row, float value) {
  return std::all_of(row, row + hidden, [&](std::uint16_t x) { return x == bf16_of(value); });
}

}  // namespace

void Scenario::check_dispatch(const CallerStep& step, int rank) {
  const int ranks = plan_.ranks;
  const auto* const ids = step.outputs.local_ids.as<std::int32_t>();
  const auto* const offsets = step.outputs.offsets.as<std::int64_t>();
  const std::int64_t rows = *step.outputs.num_rows.as<std::int64_t>();
  const std::int32_t count = *step.outputs.counts.as<std::int32_t>();
  const std::string where = fmt::format("rank {} channel {} operation {} ", rank, step.channel,
                                        step.operation / plan_.channels + 1);
  if (!looks_well(*step.report)) {
    if (world_->all_must_succeed) fail(where + "fails, and nobody gave up or refused");
    if (rows != 0 || count != 0)
      fail(fmt::format("{}has failed, but says {} rows and {} of its expert", where, rows, count));
    for (int i = 0; i < ranks * ranks; ++i) {
      if (ids[i] != -1) fail(fmt::format("{}has failed, but id {} is {}", where, i, ids[i]));
    }
    return;
  }
  if (rows != ranks || count != ranks)
    fail(
        fmt::format("{}succeeds with {} rows and {} of its expert instead of {}", where, rows, count, ranks));
  for (int s = 0; s < ranks; ++s) {
    const float want = row_value(ranks, s, step.operation);
    if (!row_is(step.rows + s * hidden, want)) {
      fail(fmt::format("{}succeeds, but the row of rank {} is {} instead of {}", where, s,
                       float_of(step.rows[s * hidden]), want));
    }
    if (offsets[s] != s) fail(fmt::format("{}succeeds, but offset {} is {}", where, s, offsets[s]));
    for (int k = 0; k < ranks; ++k) {
      const int id = expert_of_slot(ranks, k, step.operation) == rank ? 0 : -1;
      if (ids[s * ranks + k] != id)
        fail(fmt::format("{}succeeds, but id {} of the row of rank {} is {} instead of {}", where, k, s,
                         ids[s * ranks + k], id));
    }
  }
}

void Scenario::check_combine(const CallerStep& step, int rank) {
  if (!looks_well(*step.report)) {
    if (world_->all_must_succeed)
      fail(fmt::format("rank {} channel {}: a combine fails, and nobody gave up or refused", rank,
                       step.channel));
    return;
  }
  const float want = sum_value(plan_.ranks, rank, step.dispatch, step.operation);
  if (row_is(step.rows, want)) return;
  fail(fmt::format("rank {} channel {} operation {} succeeds, but the sum is {} instead of {}", rank,
                   step.channel, step.operation / plan_.channels + 1, float_of(step.rows[0]), want));
}

std::string Scenario::describe_step(int process, int index) const {
  if (process < world_->lanes()) return world_->lane(process).describe_step(index);
  constexpr const char* kinds[] = {"reads the rows of", "writes the inputs of", "reads the sums of",
                                   "overwrites the inputs of"};
  const CallerStep& step = caller_step(process - world_->lanes(), index);
  return fmt::format("rank {} caller {} channel {} operation {}", process - world_->lanes(), kinds[step.kind],
                     step.channel, step.operation / plan_.channels + 1);
}

}  // namespace sluice::protocol
