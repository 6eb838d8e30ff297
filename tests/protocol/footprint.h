// Which bytes each step of a scenario may read or write, and from that which choices need not be explored:
// a step that nobody else's next steps can conflict with commutes with all that others do before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/scenario.h"

namespace sluice::protocol {

struct Range {
  std::uint32_t begin = 0, end = 0;
  bool writes = false;
};

class Footprints {
 public:
  explicit Footprints(Scenario& scenario);

  // Whether doing this next, and nothing else, loses no behaviour of the others.
  bool step_is_alone(int process) const;
  bool store_is_alone(int lane, std::size_t index) const;
  // The same where ranks may give up or die.
  bool step_is_alone_despite_failures(int process) const;
  bool store_is_alone_despite_failures(int lane, std::size_t index) const;
  // After a step: what it did must lie within what was declared. Empty: it does.
  std::string check(int process, int index, std::size_t stores_before) const;

 private:
  struct Step {
    std::vector<Range> touches;  // when it is done
    std::vector<Range> sends;    // through the write buffer
    const core::Await* await = nullptr;
    const StepEvent* after = nullptr;
    bool signals[2] = {};
  };
  struct Candidate {
    int process;
    std::ptrdiff_t store;  // index in the buffer, or -1: the next step
  };
  struct Recorder {
    int process = -1;
    int step = 0;
  };

  void add_run(Step& step, const StepLane& lane, const core::Script& script, int number,
               const core::Run& run);
  void add_kernel(Step& step, const StepLane& lane, int number, const core::KernelArgs& kernel);
  void add(std::vector<Range>& ranges, const void* begin, std::int64_t bytes, bool writes) const;
  void add_route(Step& step, const core::RouteTables& route, bool plan_writes, bool agree_writes) const;
  void add_caller(Step& step, const CallerStep& caller) const;
  const core::PublishArgs* publish_of(int rank, int channel, int number) const;
  void find_conflicts();
  bool conflicts(const std::vector<Range>& a, const std::vector<Range>& b) const;
  int next_conflict(int process, const std::vector<Range>& ranges) const;
  bool blocked(int process, int upto, const Candidate& candidate, int depth) const;
  bool await_blocked(int process, const core::Await& await, const Candidate& candidate, int depth) const;
  bool buffers_conflict(int process, const std::vector<Range>& ranges) const;
  bool is_status(const Entry& store) const;
  bool always_conflicts(int process, const std::vector<Range>& ranges) const;
  const Step& at(int process, int index) const {
    return steps_[static_cast<std::size_t>(process)][static_cast<std::size_t>(index)];
  }

  Scenario& scenario_;
  StepWorld& world_;
  std::vector<std::vector<Step>> steps_;
  std::vector<Recorder> recorders_;  // by event, offset of its byte from the first
  // conflicts_[p][i][q]: the steps of q that conflict with what step i of p does at once.
  std::vector<std::vector<std::vector<std::vector<int>>>> conflicts_;
};

}  // namespace sluice::protocol
