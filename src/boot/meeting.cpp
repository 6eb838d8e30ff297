#include "boot/meeting.h"

#include <unistd.h>

#include <cstring>

#include <fmt/core.h>

#include "boot/sockets.h"

namespace sluice::boot {

std::string who(const MeetingPlace& place) {
  return fmt::format("{} on rank {} of {}", place.call, place.rank, place.size);
}

// Why the abstract namespace and not a socket file in a private folder: an abstract name goes with its
// last descriptor, so nothing is left behind after SIGKILL and no folder must be found, made or
// cleaned. It has no permissions, so both ends ask the kernel for the other's user (SO_PEERCRED). The
// price: another user can occupy a name that he can guess, and then the meeting fails with a sentence
// that says so. It cannot be joined or read by him.
std::string meeting_name(const KeyDigest& key) { return fmt::format("sluice/{}/{}", ::geteuid(), hex_of(key)); }

std::vector<UniqueFd> meet(const MeetingPlace& place, const Deadline& deadline) {
  if (place.size == 1) return std::vector<UniqueFd>(1);
  return place.rank == 0 ? detail::host_meeting(place, deadline) : detail::join_meeting(place, deadline);
}

void detail::tell(int fd, FrameKind kind, std::string_view text) {
  std::byte bytes[frame_bytes + max_text_bytes];
  const std::size_t n = std::min(text.size(), max_text_bytes);
  const auto header = encode(FrameHeader{kind, 0, n});
  std::memcpy(bytes, header.data(), header.size());
  if (n > 0) std::memcpy(bytes + frame_bytes, text.data(), n);
  // One write, so that a full queue takes nothing rather than half a frame.
  send_some(fd, std::span<const std::byte>(bytes, frame_bytes + n));
}

}  // namespace sluice::boot
