// Whether a step or a store can be taken alone.
#include <algorithm>

#include "protocol/footprint.h"

namespace sluice::protocol {

using core::Stage;

namespace {
constexpr int deepest = 4;
}

// Another lane's buffered stores to these bytes may become visible at any time.
bool Footprints::buffers_conflict(int process, const std::vector<Range>& ranges) const {
  for (int lane = 0; lane < world_.lanes(); ++lane) {
    if (lane == process) continue;
    for (const Machine::Id id : world_.machine().buffer(lane)) {
      const Entry& store = world_.machine().entry(id);
      for (const Range& range : ranges) {
        if (store.overlaps(range.begin, range.end)) return true;
      }
    }
  }
  return false;
}

bool Footprints::step_is_alone(int process) const {
  const int pc = world_.machine().pc(process);
  if (buffers_conflict(process, at(process, pc).touches)) return false;
  const auto& per_process = conflicts_[static_cast<std::size_t>(process)][static_cast<std::size_t>(pc)];
  for (int q = 0; q < scenario_.processes(); ++q) {
    if (q == process) continue;
    const auto& steps = per_process[static_cast<std::size_t>(q)];
    const auto next = std::lower_bound(steps.begin(), steps.end(), world_.machine().pc(q));
    if (next != steps.end() && !blocked(q, *next, {process, -1}, 0)) return false;
  }
  return true;
}

int Footprints::next_conflict(int process, const std::vector<Range>& ranges) const {
  const auto& steps = steps_[static_cast<std::size_t>(process)];
  for (auto j = static_cast<std::size_t>(world_.machine().pc(process)); j < steps.size(); ++j) {
    if (conflicts(ranges, steps[j].touches) || conflicts(ranges, steps[j].sends)) return static_cast<int>(j);
  }
  return -1;
}

bool Footprints::store_is_alone(int lane, std::size_t index) const {
  const Entry& store = world_.machine().entry(world_.machine().buffer(lane)[index]);
  const std::vector<Range> range{{store.at, store.at + store.bytes, true}};
  if (buffers_conflict(lane, range)) return false;
  for (int q = 0; q < scenario_.processes(); ++q) {
    if (q == lane) continue;
    const int next = next_conflict(q, range);
    if (next >= 0 && !blocked(q, next, {lane, static_cast<std::ptrdiff_t>(index)}, 0)) return false;
  }
  return true;
}

// Where ranks may fail, less is certain: flags are set by others than the peer, and events happen in any
// case. But who has got past a wait by failing touches no data of the channel any more, its later plans
// excepted. So a store of data may be taken alone if each lane that cares waits for a flag behind it.
bool Footprints::store_is_alone_despite_failures(int lane, std::size_t index) const {
  const Entry& store = world_.machine().entry(world_.machine().buffer(lane)[index]);
  if (store.release || store.is_reset || is_status(store) || world_.mutation().forgets_failure) return false;
  const std::vector<Range> range{{store.at, store.at + store.bytes, true}};
  if (buffers_conflict(lane, range)) return false;
  const Candidate candidate{lane, static_cast<std::ptrdiff_t>(index)};
  for (int q = 0; q < scenario_.processes(); ++q) {
    const int next = q == lane ? -1 : next_conflict(q, range);
    if (next < 0) continue;
    if (q >= world_.lanes() || always_conflicts(q, range)) return false;
    bool waits = false;
    for (int i = world_.machine().pc(q); i <= next && !waits; ++i) {
      const core::Await* const await = at(q, i).await;
      waits = await && await_blocked(q, *await, candidate, deepest);
    }
    if (!waits) return false;
  }
  return true;
}

// Passing a complete wait or a dependency, and recording an event, takes nothing from anybody.
bool Footprints::step_is_alone_despite_failures(int process) const {
  if (process >= world_.lanes()) return false;
  const StepLane& lane = world_.lane(process);
  const core::Step& step = lane.steps()[static_cast<std::size_t>(lane.pc())].step();
  if (std::holds_alternative<core::Await>(step)) return !lane.waits();
  const auto* const dependency = std::get_if<core::Depend>(&step);
  return std::holds_alternative<core::Record>(step) || (dependency && !dependency->guards_block);
}

bool Footprints::is_status(const Entry& store) const {
  for (int p = 0; p < world_.lanes(); ++p) {
    const std::uint32_t told = world_.machine().offset_of(&world_.lane(p).flags().told);
    if (store.overlaps(told, told + sizeof(StepFlags::told))) return true;
  }
  return false;
}

bool Footprints::always_conflicts(int process, const std::vector<Range>& ranges) const {
  const StepLane& lane = world_.lane(process);
  for (int i = lane.pc(); i < static_cast<int>(lane.steps().size()); ++i) {
    const auto* const run = std::get_if<core::Run>(&lane.steps()[static_cast<std::size_t>(i)].step());
    if (run && run->always && conflicts(ranges, at(process, i).touches)) return true;
  }
  return false;
}

// The process cannot do its step `upto` before the candidate has been taken.
bool Footprints::blocked(int process, int upto, const Candidate& candidate, int depth) const {
  if (depth > deepest) return false;
  for (int i = world_.machine().pc(process); i <= upto; ++i) {
    if (process == candidate.process && candidate.store < 0) return true;
    const Step& step = at(process, i);
    if (step.await && await_blocked(process, *step.await, candidate, depth)) return true;
    if (!step.after || step.after->state() != engine::LaneEvent::State::pending) continue;
    const Recorder& recorder = recorders_[world_.machine().offset_of(step.after->word())];
    if (recorder.process < 0 || blocked(recorder.process, recorder.step, candidate, depth + 1)) return true;
  }
  return false;
}

bool Footprints::await_blocked(int process, const core::Await& await, const Candidate& candidate,
                               int depth) const {
  const StepLane& lane = world_.lane(process);
  const Machine& machine = world_.machine();
  for (int peer = 0; peer < lane.ranks(); ++peer) {
    if (peer == lane.rank()) continue;
    const std::uint32_t flag = lane.flag_at(await.stage, peer);
    if (machine.seen_by(process, flag) != 0) continue;
    const int setter = world_.lane(peer, lane.channel()).process();
    const Machine::Buffer& buffer = machine.buffer(setter);
    // A signal in the buffer comes without the candidate, unless the candidate is older and in its way.
    const auto raise = std::find_if(buffer.begin(), buffer.end(),
                                    [&](Machine::Id id) { return machine.entry(id).at == flag; });
    if (raise != buffer.end()) {
      const bool in_the_way =
          setter == candidate.process && candidate.store >= 0 && raise - buffer.begin() >= candidate.store;
      const Weakness& weakness = world_.mutation().memory;
      const bool ordered = !weakness.release_overtakes_all && !weakness.release_overtakes_resets &&
                           !world_.mutation().unfenced_rows;
      if (in_the_way && (ordered || raise - buffer.begin() == candidate.store)) return true;
      continue;
    }
    const auto& steps = steps_[static_cast<std::size_t>(setter)];
    auto next = static_cast<std::size_t>(machine.pc(setter));
    const bool both = world_.mutation().one_flag_for_both_stages;
    while (next < steps.size() && !steps[next].signals[static_cast<int>(await.stage)] &&
           !(both && (steps[next].signals[0] || steps[next].signals[1])))
      ++next;
    if (next == steps.size() || blocked(setter, static_cast<int>(next), candidate, depth + 1)) return true;
  }
  return false;
}

}  // namespace sluice::protocol
