// Ranks that are processes of this machine.
#pragma once

#include <atomic>
#include <memory>

#include "boot/exchange.h"
#include "boot/group_state.h"
#include "boot/meeting.h"
#include "boot/monitor.h"

namespace sluice::boot {

class ProcessGroup : public GroupState {
 public:
  // `peers` as meet() returns them.
  ProcessGroup(MeetingPlace place, std::vector<UniqueFd> peers);

  // Collective, once, first: gathers the ranks' nodes. Throws SystemError for more than one.
  void learn_nodes(const Deadline& deadline);

  int rank() const override { return place_.rank; }
  int size() const override { return place_.size; }
  bool in_one_process() const override { return false; }
  const std::vector<int>& nodes() const override { return nodes_; }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> message) override;
  void barrier() override;
  std::vector<UniqueFd> exchange_descriptors(int descriptor) override;
  std::vector<std::shared_ptr<void>> exchange_objects(const std::shared_ptr<void>& object) override;
  void give_up(const char* why) noexcept override;
  std::shared_ptr<void> watch(std::function<void(int rank)> on_gone) override;

 private:
  void interrupted() noexcept;
  Contributions exchange_all(FrameKind call, Contribution mine, const Deadline& deadline);

  const MeetingPlace place_;
  std::shared_ptr<const PairSockets> sockets_;
  std::vector<int> nodes_;
  std::uint32_t sequence_ = 0;
  std::string failure_;  // not empty: nothing can be exchanged any more
  std::atomic<bool> busy_ = false;
  Monitor monitor_;
};

// Collective: meets at `place`, and returns when all ranks have. Throws as Group::from_environment.
std::shared_ptr<GroupState> meet_processes(const MeetingPlace& place);

}  // namespace sluice::boot
