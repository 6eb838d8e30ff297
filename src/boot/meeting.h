// How the processes of one machine find each other: after it every pair of ranks shares a socket.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "boot/deadline.h"
#include "boot/unique_fd.h"
#include "boot/wire.h"

namespace sluice::boot {

struct MeetingPlace {
  std::string call;     // for errors: "from_environment"
  int rank = 0;
  int size = 1;
  std::string job_key;  // the same on all ranks, and different for every meeting of the machine
  int timeout_ms = 0;   // 0 = without end
};

// "from_environment on rank 3 of 16"
std::string who(const MeetingPlace& place);

// One connected stream socket for each peer, by rank; the own place is empty. Collective. Throws
// PeerError naming the ranks that did not come in time, SystemError when a socket cannot be made.
std::vector<UniqueFd> meet(const MeetingPlace& place, const Deadline& deadline);

// The name in the abstract namespace at which rank 0 of this user's job listens.
std::string meeting_name(const KeyDigest& key);

namespace detail {

inline constexpr int grace_ms = 500;
inline constexpr int hello_patience_ms = 5'000;
inline constexpr std::size_t max_strangers = 256;

// Rank 0's part, and that of the others.
std::vector<UniqueFd> host_meeting(const MeetingPlace& place, const Deadline& deadline);
std::vector<UniqueFd> join_meeting(const MeetingPlace& place, const Deadline& deadline);

// A header with its text, sent without waiting: whoever does not read it now is not told.
void tell(int fd, FrameKind kind, std::string_view text);

}  // namespace detail
}  // namespace sluice::boot
