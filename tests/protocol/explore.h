// Every schedule of a scenario, by depth-first search over states; or one, at random.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/footprint.h"
#include "protocol/scenario.h"
#include "protocol/state_set.h"

namespace sluice::protocol {

struct Choice {
  enum Kind : std::uint8_t { step, store, give_up, die } kind = step;
  std::uint8_t process = 0;
  std::uint16_t store_index = 0;
};

struct Limits {
  bool reduce = true;
  int give_ups = 0;     // how many lanes may give up, at any moment in which they wait
  int dying_rank = -1;  // may stop for ever, at any moment
  std::uint64_t most_states = 30'000'000;
};

struct Found {
  std::uint64_t states = 0;  // distinct, at which there was a choice
  std::uint64_t transitions = 0;
  std::uint64_t ends = 0;  // distinct states in which everything has ended
  bool complete = false;   // nothing was left out
  std::string error;       // of the first schedule that breaks a promise
  std::vector<std::string> schedule;
  double seconds = 0;

  std::string text() const;  // the schedule, one step a line, and the error
};

class Explorer {
 public:
  Explorer(Scenario& scenario, const Limits& limits);
  Found run();
  // One schedule from the beginning to an end, and back.
  Found run_random(std::uint64_t seed);

 private:
  bool may_fail() const;
  std::vector<Choice> choices();
  void add_steps(std::vector<Choice>& all);
  void add_stores(std::vector<Choice>& all);
  void add_failures(std::vector<Choice>& all);
  bool alone(const std::vector<Choice>& all, Choice& chosen) const;
  void take(const Choice& choice);
  std::string describe(const Choice& choice) const;
  std::string describe_stuck();
  bool finish();
  void explore();
  void replay(std::size_t start);
  bool dead(int process) const;

  Scenario& scenario_;
  StepWorld& world_;
  Machine& machine_;
  Limits limits_;
  std::unique_ptr<Footprints> footprints_;
  StateSet seen_, ends_;
  Found found_;
  std::vector<Choice> path_;
  std::uint8_t* given_up_;  // in the machine: part of the state
  std::uint8_t* died_;
};

}  // namespace sluice::protocol
