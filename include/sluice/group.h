// How the ranks of a job find each other. A group moves no tokens: communicators are made from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sluice/export.h>

namespace sluice {

namespace boot {
class GroupState;
}

struct MeetOptions {
  // How long to wait for all ranks to appear, milliseconds. 0 = without end.
  int timeout_ms = 60'000;
};

// A copyable handle on one rank's membership. Copies share the membership; it ends with the last copy
// and the last communicator made from it. Thread safety: collective functions of one rank must not
// run at the same time; everything else may.
class SLUICE_API Group {
 public:
  // An empty handle; every member function except valid() throws ArgumentError.
  Group() = default;

  // `size` ranks as threads of this process: element i is for the thread that plays rank i; move it
  // there, since a rank is seen as gone when its last handle goes. Not collective, returns at once.
  // Throws ArgumentError unless 1 <= size <= limits::ranks_per_node.
  static std::vector<Group> threads(int size);

  // Rank and size from the environment: of `sluice run` or torchrun (RANK, WORLD_SIZE, MASTER_ADDR,
  // MASTER_PORT), OpenMPI (OMPI_COMM_WORLD_RANK, _SIZE), MPICH (PMI_RANK, PMI_SIZE) or srun
  // (SLURM_PROCID, SLURM_NTASKS), in that order; without any of these a group of one rank. Collective:
  // all ranks make the same sequence of calls. Returns when every pair is connected by a Unix socket.
  // Throws ArgumentError for a malformed variable, PeerError when a rank does not come in time, and
  // SystemError when a socket cannot be made or the job spans several nodes (not supported yet).
  static Group from_environment(const MeetOptions& options = {});

  // Collects one message of every rank, in rank order: any library's all-gather. Messages of one call
  // all have the same length.
  using AllGather = std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte>)>;

  // From the caller's own all-gather (a torch process group, mpi4py, anything). `all_gather` is called
  // a few times before this returns and never after. What the function throws passes through. Collective. Errors as
  // from_environment.
  static Group from_all_gather(int rank, int size, const AllGather& all_gather, const MeetOptions& options = {});

  bool valid() const noexcept { return state_ != nullptr; }
  int rank() const;
  int size() const;

  // Collects one message of every rank, in rank order; lengths may differ, at most 16 MiB each.
  // Collective. Throws PeerError when a rank is gone or does not come within the meeting's timeout; the
  // group is then of no further use.
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> message) const;

  // Returns when every rank has called it. Collective. Errors as all_gather.
  void barrier() const;

  // Used by the library itself.
  const std::shared_ptr<boot::GroupState>& state() const { return state_; }
  explicit Group(std::shared_ptr<boot::GroupState> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<boot::GroupState> state_;
};

}  // namespace sluice
