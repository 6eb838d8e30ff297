#include "boot/process_group.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include <fmt/core.h>
#include <sluice/errors.h>

#include "boot/node.h"

namespace sluice::boot {
namespace {

UniqueFd duplicate(int descriptor) { return UniqueFd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)); }

// Collective calls of one rank one after another: two at once would mix their bytes in the streams.
class Turn {
 public:
  Turn(std::atomic<bool>& busy, const std::string& call, int rank) : busy_(busy) {
    if (busy_.exchange(true))
      throw ArgumentError(fmt::format("{}: another thread is inside a collective call of this group; make them one after "
                                      "another", call), rank);
  }
  ~Turn() { busy_ = false; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<bool>& busy_;
};

}  // namespace

ProcessGroup::ProcessGroup(MeetingPlace place, std::vector<UniqueFd> peers)
    : place_(std::move(place)),
      sockets_(std::make_shared<const PairSockets>(std::move(peers))),
      nodes_(static_cast<std::size_t>(place_.size), 0),
      monitor_(sockets_) {}

void ProcessGroup::learn_nodes(const Deadline& deadline) {
  const Node mine = this_node();
  const auto parts = exchange_all(FrameKind::all_gather, gather_contribution(encode(mine)), deadline);
  std::vector<Node> all;
  for (const auto& part : parts) {
    const auto node = parse_node(part->bytes);
    if (!node) throw PeerError(fmt::format("{}: a rank describes its node with garbage", who(place_)), place_.rank);
    all.push_back(*node);
  }
  nodes_ = number_nodes(all);
  require_one_node(who(place_), place_.rank, all);
}

Contributions ProcessGroup::exchange_all(FrameKind call, Contribution mine, const Deadline& deadline) {
  const Turn turn(busy_, where(call, rank(), size()), rank());
  if (sockets_->is_forked_copy()) refuse_forked_copy(call, rank(), size());
  if (failure_.empty()) {
    ExchangeResult result;
    try {
      result = exchange(sockets_->fds(), rank(), sequence_++, std::move(mine), deadline);
    } catch (...) {
      interrupted();
      throw;
    }
    if (!result.failure) {
      check_contributions(result.all, rank(), call);
      return std::move(result.all);
    }
    failure_ = result.failure->reason;
  }
  throw PeerError(fmt::format("{}: {}; make a new group", where(call, rank(), size()), failure_), rank());
}

std::vector<std::vector<std::byte>> ProcessGroup::all_gather(std::span<const std::byte> message) {
  const auto all = exchange_all(FrameKind::all_gather, gather_contribution(message), Deadline::in_ms(place_.timeout_ms));
  std::vector<std::vector<std::byte>> messages;
  for (const auto& part : all) messages.push_back(std::move(part->bytes));
  return messages;
}

void ProcessGroup::barrier() { exchange_all(FrameKind::barrier, Contribution{}, Deadline::in_ms(place_.timeout_ms)); }

// First all say that they have one. A user's descriptors under way are limited (RLIMIT_NOFILE): those
// sent ahead to ranks that are still in the exchange before this one, and so do not take them, could
// use up the limit that those ranks wait for. (Test: F4.few_open_files_are_enough_for_many_ranks)
std::vector<UniqueFd> ProcessGroup::exchange_descriptors(int descriptor) {
  Contribution mine;
  mine.descriptor = duplicate(descriptor);
  Contribution first;
  first.kind = FrameKind::have_descriptor;
  const bool full = !mine.descriptor && errno == EMFILE;
  if (!mine.descriptor) {
    first = refusal(fmt::format("descriptor {} cannot be duplicated: {}{}", descriptor, std::strerror(errno),
                                full ? "; raise the limit of open files (ulimit -n)" : ""));
  }
  const Deadline deadline = Deadline::in_ms(place_.timeout_ms);
  try {
    exchange_all(FrameKind::have_descriptor, std::move(first), deadline);
  } catch (const ArgumentError& error) {
    // Of a full table no argument is to blame.
    if (full) throw SystemError(error.what(), rank());
    throw;
  }
  mine.kind = FrameKind::descriptors;
  const auto all = exchange_all(FrameKind::descriptors, std::move(mine), deadline);
  std::vector<UniqueFd> descriptors;
  for (const auto& part : all) descriptors.push_back(std::move(part->descriptor));
  return descriptors;
}

std::vector<std::shared_ptr<void>> ProcessGroup::exchange_objects(const std::shared_ptr<void>&) {
  throw ArgumentError(fmt::format("{}: the ranks are processes and share no objects; exchange descriptors of their memory",
                                  where(FrameKind::objects, rank(), size())), rank());
}

// In the middle of a message, perhaps: for the peers the streams end there. So short a text needs no memory.
void ProcessGroup::interrupted() noexcept {
  failure_ = "interrupted";
  for (const UniqueFd& peer : sockets_->fds()) {
    if (peer) ::shutdown(peer.get(), SHUT_WR);
  }
}

void ProcessGroup::give_up(const char* why) noexcept {
  if (sockets_->is_forked_copy() || !failure_.empty()) return;
  failure_ = "interrupted";
  for (const UniqueFd& peer : sockets_->fds()) {
    if (peer) detail::tell(peer.get(), FrameKind::gave_up, why);
  }
}

std::shared_ptr<void> ProcessGroup::watch(std::function<void(int rank)> on_gone) { return monitor_.watch(std::move(on_gone)); }

std::shared_ptr<GroupState> meet_processes(const MeetingPlace& place) {
  const Deadline deadline = Deadline::in_ms(place.timeout_ms);
  auto group = std::make_shared<ProcessGroup>(place, meet(place, deadline));
  group->learn_nodes(deadline.plus_ms(detail::grace_ms));
  return group;
}

}  // namespace sluice::boot
