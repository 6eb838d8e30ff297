#include "boot/sockets.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include <fmt/core.h>
#include <sluice/errors.h>

namespace sluice::boot {
namespace {

struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;
};

// A path must start with a zero byte to be abstract, and is not ended by one.
Address abstract_address(const std::string& name) {
  Address address;
  address.socket.sun_family = AF_UNIX;
  const std::size_t n = std::min(name.size(), sizeof address.socket.sun_path - 1);
  std::memcpy(address.socket.sun_path + 1, name.data(), n);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return address;
}

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd)
    throw SystemError(fmt::format("meeting: a Unix socket cannot be made: {}; raise the limit of open files (ulimit -n)",
                                  std::strerror(errno)));
  return fd;
}

void keep_descriptors(msghdr& message, UniqueFd* keep) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(c) + i * sizeof(int), sizeof received);
      UniqueFd owned(received);
      if (keep != nullptr && !*keep) *keep = std::move(owned);
    }
  }
}

}  // namespace

Progress send_some(int fd, std::span<const std::byte> bytes, int descriptor) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &descriptor, sizeof descriptor);
  }
  for (;;) {
    const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return {Io::done, static_cast<std::size_t>(n)};
    if (errno == EINTR) continue;
    // ETOOMANYREFS: this user has more descriptors under way than it may have files open. It passes
    // when the receivers take theirs, so it is a full queue like any other.
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS || errno == ENOBUFS) return {Io::would_block, 0};
    return {errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN ? Io::closed : Io::failed, 0};
  }
}

Progress receive_some(int fd, std::span<std::byte> bytes, UniqueFd* descriptor) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  for (;;) {
    message.msg_control = descriptor != nullptr ? control : nullptr;
    message.msg_controllen = descriptor != nullptr ? sizeof control : 0;
    const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n > 0) {
      keep_descriptors(message, descriptor);
      return {Io::done, static_cast<std::size_t>(n)};
    }
    if (n == 0 || errno == ECONNRESET) return {Io::closed, 0};
    if (errno == EINTR) continue;
    return {errno == EAGAIN || errno == EWOULDBLOCK ? Io::would_block : Io::failed, 0};
  }
}

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    const int n = ::poll(&entry, 1, deadline.poll_ms());
    if (n > 0 || (n < 0 && errno != EINTR)) return true;
    if (n == 0 && deadline.passed()) return false;
  }
}

Io send_all(int fd, std::span<const std::byte> bytes, const Deadline& deadline, int descriptor) {
  while (!bytes.empty()) {
    const Progress now = send_some(fd, bytes, descriptor);
    if (now.state == Io::done) {
      bytes = bytes.subspan(now.bytes);
      descriptor = -1;
      continue;
    }
    if (now.state != Io::would_block) return now.state;
    if (deadline.passed() || !wait_for(fd, POLLOUT, deadline)) return Io::would_block;
    // Writable, and yet it would block: too many descriptors under way (see send_some).
    if (descriptor >= 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Io::done;
}

Io receive_all(int fd, std::span<std::byte> bytes, const Deadline& deadline, UniqueFd* descriptor) {
  while (!bytes.empty()) {
    const Progress now = receive_some(fd, bytes, descriptor);
    if (now.state == Io::done) {
      bytes = bytes.subspan(now.bytes);
      continue;
    }
    if (now.state != Io::would_block) return now.state;
    if (!wait_for(fd, POLLIN, deadline)) return Io::would_block;
  }
  return Io::done;
}

UniqueFd listen_at(const std::string& name, int& problem) {
  UniqueFd fd = make_socket();
  const Address address = abstract_address(name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.socket), address.length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    problem = errno;
    return {};
  }
  return fd;
}

UniqueFd connect_to(const std::string& name, int& problem) {
  UniqueFd fd = make_socket();
  const Address address = abstract_address(name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.socket), address.length) != 0) {
    problem = errno;
    return {};
  }
  return fd;
}

UniqueFd accept_from(int listener) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd || (errno != EINTR && errno != ECONNABORTED)) return fd;
  }
}

std::pair<UniqueFd, UniqueFd> make_pair_of_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    throw SystemError(fmt::format("meeting: a pair of Unix sockets cannot be made: {}; raise the limit of open files (ulimit -n)",
                                  std::strerror(errno)));
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::optional<uid_t> user_of_peer(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer.uid;
}

bool hung_up(int fd) {
  pollfd entry{fd, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace sluice::boot
