// Other ways to tell a peer "I am here" that are in use elsewhere, under every schedule of 2 ranks, 2
// handles and 3 calls: each lets a rank go on whose peer is not there, or leaves it waiting for ever
// (cases.md 21). Ours under the same: protocol.every_schedule_with_channels_in_another_order, on the scripts
// themselves.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace sluice::protocol {
namespace {

constexpr int handles = 2;

struct State {
  std::array<int, 4> pc{};  // of (rank, handle): each handle runs on a stream of its own
  std::array<int, 16> memory{};
  std::array<std::array<int, 2>, 4> calls{};  // of (rank, handle): begun, ended
  auto operator<=>(const State&) const = default;
};

// One atomic step; false: it cannot be done yet.
using Step = std::function<bool(State&)>;
using Program = std::vector<Step>;

// What one call does on (rank, handle), its number there counted from 0.
using Scheme = std::function<Program(int rank, int handle, int call)>;

class Schedules {
 public:
  explicit Schedules(const Scheme& scheme) {
    for (int p = 0; p < 4; ++p) {
      const int rank = p / handles, handle = p % handles, calls = handle == 0 ? 2 : 1;
      for (int call = 0; call < calls; ++call) {
        programs_[static_cast<std::size_t>(p)].push_back(
            [p](State& s) { return ++s.calls[static_cast<std::size_t>(p)][0], true; });
        for (Step& step : scheme(rank, handle, call))
          programs_[static_cast<std::size_t>(p)].push_back(std::move(step));
        programs_[static_cast<std::size_t>(p)].push_back(
            [p](State& s) { return ++s.calls[static_cast<std::size_t>(p)][1], true; });
      }
    }
  }

  // What goes wrong in some schedule; empty: nothing in any.
  std::string first_error() {
    visit(State{});
    return error_;
  }

 private:
  void visit(const State& state) {
    if (!error_.empty() || !seen_.insert(state).second) return;
    bool moved = false, all_done = true;
    for (std::size_t p = 0; p < 4; ++p) {
      const auto pc = static_cast<std::size_t>(state.pc[p]);
      if (pc >= programs_[p].size()) continue;
      all_done = false;
      State next = state;
      if (!programs_[p][pc](next)) continue;
      moved = true;
      ++next.pc[p];
      if (next.calls[p][1] > next.calls[p ^ handles][0]) error_ = "a rank goes on whose peer has not come";
      visit(next);
    }
    if (!moved && !all_done && error_.empty()) error_ = "a rank waits for ever";
  }

  std::array<Program, 4> programs_;
  std::set<State> seen_;
  std::string error_;
};

std::size_t at(int rank, int index = 0) { return static_cast<std::size_t>(rank * 8 + index); }

// Each adds one to its own counter and takes one from the peer's, then waits for zero.
Program add_then_subtract(int rank, int, int) {
  return {[rank](State& s) { return ++s.memory[at(rank)], true; },
          [rank](State& s) { return --s.memory[at(1 - rank)], true; },
          [rank](State& s) { return s.memory[at(rank)] == 0; }};
}

// The value that means "here" alternates, and each handle counts for itself; the flag belongs to the group.
Program parity_per_handle(int rank, int, int call) {
  const int here = call % 2 == 0 ? 1 : 0;
  return {[rank, here](State& s) { return s.memory[at(1 - rank)] = here, true; },
          [rank, here](State& s) { return s.memory[at(rank)] == here; }};
}

// The device counts the calls, whichever handle they come from.
Program epoch_on_the_device(int rank, int handle, int) {
  return {[=](State& s) { return s.memory[at(rank, 2 + handle)] = ++s.memory[at(rank, 1)], true; },
          [=](State& s) { return s.memory[at(1 - rank)] = s.memory[at(rank, 2 + handle)], true; },
          [=](State& s) { return s.memory[at(rank)] >= s.memory[at(rank, 2 + handle)]; }};
}

// One binary flag per handle and stage; consumed by its owner before it signals the other stage.
Program consumed_flags(int rank, int handle, int call) {
  const int open = handle * 2, close = handle * 2 + 1;
  return {[=](State& s) { return call == 0 || s.memory[at(rank, close)] == 1; },
          [=](State& s) { return s.memory[at(rank, close)] = 0, true; },
          [=](State& s) { return s.memory[at(1 - rank, open)] = 1, true; },
          [=](State& s) { return s.memory[at(rank, open)] == 1; },
          [=](State& s) { return s.memory[at(rank, open)] = 0, true; },
          [=](State& s) { return s.memory[at(1 - rank, close)] = 1, true; }};
}

TEST(flag_schemes, add_then_subtract_loses_a_rank) {
  EXPECT_NE(Schedules(add_then_subtract).first_error(), "");
}
TEST(flag_schemes, parity_per_handle_loses_a_rank) {
  EXPECT_NE(Schedules(parity_per_handle).first_error(), "");
}
TEST(flag_schemes, epoch_on_the_device_loses_a_rank) {
  EXPECT_NE(Schedules(epoch_on_the_device).first_error(), "");
}
TEST(flag_schemes, consumed_flags_lose_none) { EXPECT_EQ(Schedules(consumed_flags).first_error(), ""); }

}  // namespace
}  // namespace sluice::protocol
