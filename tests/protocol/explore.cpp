#include "protocol/explore.h"

#include <fmt/format.h>

#include <chrono>
#include <random>

namespace sluice::protocol {

std::string Found::text() const {
  std::string text;
  for (std::size_t i = 0; i < schedule.size(); ++i) text += fmt::format("  {:3} {}\n", i + 1, schedule[i]);
  return text + "  => " + error + "\n";
}

Explorer::Explorer(Scenario& scenario, const Limits& limits)
    : scenario_(scenario),
      world_(scenario.world()),
      machine_(world_.machine()),
      limits_(limits),
      given_up_(reinterpret_cast<std::uint8_t*>(machine_.take(1, 1))),
      died_(reinterpret_cast<std::uint8_t*>(machine_.take(1, 1))) {
  if (may_fail()) world_.all_must_succeed = false;
  if (limits_.reduce) footprints_ = std::make_unique<Footprints>(scenario);
}

bool Explorer::may_fail() const { return limits_.give_ups > 0 || limits_.dying_rank >= 0; }

bool Explorer::dead(int process) const {
  if (!*died_) return false;
  const int rank = process < world_.lanes() ? world_.lane(process).rank() : process - world_.lanes();
  return rank == limits_.dying_rank;
}

void Explorer::add_steps(std::vector<Choice>& all) {
  for (int p = 0; p < scenario_.processes(); ++p) {
    if (!dead(p) && scenario_.can_step(p)) all.push_back({Choice::step, static_cast<std::uint8_t>(p), 0});
  }
}

void Explorer::add_stores(std::vector<Choice>& all) {
  for (int lane = 0; lane < world_.lanes(); ++lane) {
    for (std::size_t i = 0; i < machine_.buffer(lane).size(); ++i) {
      if (!machine_.can_commit(lane, i, world_.mutation().memory)) continue;
      all.push_back({Choice::store, static_cast<std::uint8_t>(lane), static_cast<std::uint16_t>(i)});
    }
  }
}

void Explorer::add_failures(std::vector<Choice>& all) {
  for (int p = 0; *given_up_ < limits_.give_ups && p < world_.lanes(); ++p) {
    if (!dead(p) && world_.lane(p).waits()) all.push_back({Choice::give_up, static_cast<std::uint8_t>(p), 0});
  }
  if (limits_.dying_rank >= 0 && !*died_) all.push_back({Choice::die, 0, 0});
}

std::vector<Choice> Explorer::choices() {
  std::vector<Choice> all;
  all.reserve(16);
  add_steps(all);
  add_stores(all);
  Choice chosen;
  if (footprints_ && alone(all, chosen)) return {chosen};
  add_failures(all);
  return all;
}

bool Explorer::alone(const std::vector<Choice>& all, Choice& chosen) const {
  for (const Choice& choice : all) {
    const bool step = choice.kind == Choice::step;
    const Footprints& f = *footprints_;
    const bool is =
        may_fail()
            ? (step ? f.step_is_alone_despite_failures(choice.process)
                    : f.store_is_alone_despite_failures(choice.process, choice.store_index))
            : (step ? f.step_is_alone(choice.process) : f.store_is_alone(choice.process, choice.store_index));
    if (!is) continue;
    chosen = choice;
    return true;
  }
  return false;
}

void Explorer::take(const Choice& choice) {
  ++found_.transitions;
  if (choice.kind == Choice::die) return machine_.set(died_, std::uint8_t{1});
  if (choice.kind == Choice::give_up) {
    machine_.set(given_up_, static_cast<std::uint8_t>(*given_up_ + 1));
    return world_.lane(choice.process).give_up();
  }
  if (choice.kind == Choice::store) {
    world_.error = lost_signal(world_, choice.process,
                               machine_.entry(machine_.buffer(choice.process)[choice.store_index]));
    return machine_.commit(choice.process, choice.store_index);
  }
  const int pc = machine_.pc(choice.process);
  const std::size_t stores = choice.process < world_.lanes() ? machine_.buffer(choice.process).size() : 0;
  scenario_.step(choice.process);
  if (footprints_ && !may_fail() && world_.error.empty())
    world_.error = footprints_->check(choice.process, pc, stores);
}

std::string Explorer::describe(const Choice& choice) const {
  if (choice.kind == Choice::die) return fmt::format("rank {} stops for ever", limits_.dying_rank);
  const int pc = machine_.pc(choice.process);
  if (choice.kind == Choice::give_up) return "GIVES UP: " + world_.lane(choice.process).describe_step(pc);
  if (choice.kind == Choice::step) return scenario_.describe_step(choice.process, pc);
  const Entry& entry = machine_.entry(machine_.buffer(choice.process)[choice.store_index]);
  const StepLane& lane = world_.lane(choice.process);
  return fmt::format("    visible, stored by rank {} channel {}: {}{}", lane.rank(), lane.channel(),
                     protocol::describe(world_, entry.at),
                     entry.is_reset  ? " = 0"
                     : entry.release ? " = 1"
                                     : "");
}

std::string Explorer::describe_stuck() {
  std::string text = "deadlock:";
  for (int p = 0; p < scenario_.processes(); ++p) {
    if (!scenario_.done(p) && !dead(p))
      text += fmt::format(" [{}]", scenario_.describe_step(p, machine_.pc(p)));
  }
  return text;
}

// Nothing can happen any more: has everything ended?
bool Explorer::finish() {
  for (int p = 0; p < scenario_.processes(); ++p) {
    if (!scenario_.done(p) && !dead(p)) {
      world_.error = describe_stuck();
      return false;
    }
  }
  found_.ends += ends_.insert(machine_.hash());
  return true;
}

// On an error the path is replayed for its description, so that the search itself names nothing.
void Explorer::explore() {
  const std::vector<Choice> all = choices();
  if (all.empty()) finish();
  if (!world_.error.empty()) {
    found_.error = world_.error;
    return;
  }
  for (const Choice& choice : all) {
    const std::size_t mark = machine_.mark();
    path_.push_back(choice);
    take(choice);
    if (!world_.error.empty()) {
      found_.error = world_.error;
      return;
    }
    if (all.size() == 1 || seen_.insert(machine_.hash())) explore();
    if (!found_.error.empty()) return;
    if (seen_.size() >= limits_.most_states) return;
    machine_.undo_to(mark);
    path_.pop_back();
  }
}

// The schedule in words.
void Explorer::replay(std::size_t start) {
  machine_.undo_to(start);
  world_.error.clear();
  if (found_.error.empty()) return;
  for (const Choice& choice : path_) {
    found_.schedule.push_back(describe(choice));
    take(choice);
  }
  world_.error.clear();
  machine_.undo_to(start);
}

Found Explorer::run() {
  const auto began = std::chrono::steady_clock::now();
  machine_.capture();
  const std::size_t start = machine_.mark();
  explore();
  found_.states = seen_.size();
  found_.complete = found_.error.empty() && seen_.size() < limits_.most_states;
  replay(start);
  found_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return found_;
}

Found Explorer::run_random(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  found_ = {};
  path_.clear();
  machine_.capture();
  const std::size_t start = machine_.mark();
  while (world_.error.empty()) {
    const std::vector<Choice> all = choices();
    if (all.empty()) {
      finish();
      break;
    }
    const Choice choice = all[random() % all.size()];
    path_.push_back(choice);
    take(choice);
  }
  found_.error = world_.error;
  replay(start);
  return found_;
}

}  // namespace sluice::protocol
