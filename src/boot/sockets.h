// Unix sockets without surprises: no SIGPIPE, close on exec, EINTR retried, every wait with a deadline.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "boot/deadline.h"
#include "boot/unique_fd.h"

namespace sluice::boot {

enum class Io { done, would_block, closed, failed };  // failed: errno says why

struct Progress {
  Io state = Io::would_block;
  std::size_t bytes = 0;
};

// One attempt each, never blocking. A descriptor (>= 0) travels with the first byte.
Progress send_some(int fd, std::span<const std::byte> bytes, int descriptor = -1);
// `descriptor` null: descriptors that come along are closed. Otherwise the first one is kept there.
Progress receive_some(int fd, std::span<std::byte> bytes, UniqueFd* descriptor = nullptr);

// All bytes, or the reason why not; would_block means that the deadline has passed.
Io send_all(int fd, std::span<const std::byte> bytes, const Deadline& deadline, int descriptor = -1);
Io receive_all(int fd, std::span<std::byte> bytes, const Deadline& deadline, UniqueFd* descriptor = nullptr);

// False: the deadline has passed. True also when the other end has gone or a signal came.
bool wait_for(int fd, short events, const Deadline& deadline);

// Names are in the abstract namespace. Both throw SystemError when no socket can be made; `problem`
// gets errno when the result is empty.
UniqueFd listen_at(const std::string& name, int& problem);
UniqueFd connect_to(const std::string& name, int& problem);
UniqueFd accept_from(int listener);  // empty: nobody there

std::pair<UniqueFd, UniqueFd> make_pair_of_sockets();

// The effective user at the other end when it connected or listened.
std::optional<uid_t> user_of_peer(int fd);

// Has the other end hung up? Reads nothing.
bool hung_up(int fd);

}  // namespace sluice::boot
