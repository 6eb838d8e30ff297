#include "protocol/mutations.h"

#include <algorithm>

namespace sluice::protocol {

using core::Await;
using core::Run;
using core::Script;
using core::Stage;
using core::Step;

namespace {

using At = std::vector<Step>::iterator;

template <class Kernel>
At find_kernel(Script& script) {
  return std::find_if(script.steps.begin(), script.steps.end(), [](const Step& step) {
    const auto* const run = std::get_if<Run>(&step);
    return run && std::holds_alternative<Kernel>(run->kernel);
  });
}

At find_await(Script& script, Stage stage, At from) {
  return std::find_if(from, script.steps.end(), [&](const Step& step) {
    const auto* const await = std::get_if<Await>(&step);
    return await && await->stage == stage;
  });
}

void drop(Script& script, Stage stage) {
  std::erase_if(script.steps, [&](const Step& step) {
    const auto* const await = std::get_if<Await>(&step);
    return await && await->stage == stage;
  });
  for (Step& step : script.steps) {
    auto* const run = std::get_if<Run>(&step);
    if (!run) continue;
    if (run->tail.signal == stage) run->tail.signals = false;
    if (run->tail.reset == stage) run->tail.resets = false;
  }
}

// The tail of the kernel goes first, as a step of its own.
void tail_before(Script& script, At kernel) {
  if (kernel == script.steps.end()) return;
  Run seal{core::SealArgs{}, std::get<Run>(*kernel).tail, core::Stamp::none, 0, false};
  std::get<Run>(*kernel).tail = {};
  script.steps.insert(kernel, Step(seal));
}

}  // namespace

void drop_open(Script& script, int) { drop(script, Stage::open); }
void drop_close(Script& script, int) { drop(script, Stage::close); }

// The record of the next operation goes out during this one, whose CLOSE the peers have not sent.
void publish_before_close(Script& script, int) {
  const At publish = find_kernel<core::PublishArgs>(script), move = find_kernel<core::MoveArgs>(script);
  if (publish == script.steps.end() || move == script.steps.end()) return;
  Run early = std::get<Run>(*publish);
  early.tail = {};
  script.steps.insert(move + 1, Step(early));
}

void read_counts_after_close(Script& script, int) {
  const At agree = find_kernel<core::AgreeArgs>(script), finish = find_kernel<core::FinishArgs>(script);
  if (agree == script.steps.end() || finish == script.steps.end()) return;
  Run late = std::get<Run>(*agree);
  script.steps.insert(finish, Step(late));
}

void signal_before_record(Script& script, int) {
  tail_before(script, find_kernel<core::PublishArgs>(script));
}
void signal_before_rows(Script& script, int) { tail_before(script, find_kernel<core::MoveArgs>(script)); }

void finish_before_close(Script& script, int) {
  const At move = find_kernel<core::MoveArgs>(script);
  if (move == script.steps.end()) return;
  script.steps.erase(find_await(script, Stage::close, move));
}

}  // namespace sluice::protocol
