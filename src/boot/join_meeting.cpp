// The part of every rank but 0 in the meeting: find rank 0, say hello, take the sockets.
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include <fmt/core.h>
#include <sluice/errors.h>

#include "boot/meeting.h"
#include "boot/sockets.h"

namespace sluice::boot {
namespace {

using namespace detail;

class Guest {
 public:
  // Rank 0 may have begun later, and its verdict names the absent: wait a little for it.
  Guest(const MeetingPlace& place, const Deadline& deadline)
      : place_(place), deadline_(deadline), verdict_deadline_(deadline.plus_ms(grace_ms)) {}

  std::vector<UniqueFd> run() {
    int pause_ms = 1;
    UniqueFd host;
    while (!(host = try_to_join())) {
      if (deadline_.passed()) fail(fmt::format("rank 0 did not come to the meeting within {} ms{}", deadline_.timeout_ms(), last_problem_));
      std::this_thread::sleep_for(std::chrono::milliseconds(deadline_.poll_ms(pause_ms)));
      pause_ms = std::min(pause_ms * 2, 20);
    }
    std::vector<UniqueFd> peers(static_cast<std::size_t>(place_.size));
    for (int n = 0; n < place_.size - 2; ++n) take_pair(host, peers);
    peers[0] = std::move(host);
    return peers;
  }

 private:
  // Empty: not this time, `last_problem_` says why.
  UniqueFd try_to_join() {
    const KeyDigest key = digest_of(place_.job_key);
    int problem = 0;
    UniqueFd host = connect_to(meeting_name(key), problem);
    if (!host) {
      if (problem == ECONNREFUSED) last_problem_.clear();  // nobody listens yet
      else last_problem_ = fmt::format(" (connecting: {})", std::strerror(problem));
      return {};
    }
    const auto user = user_of_peer(host.get());
    if (user != ::geteuid()) {
      last_problem_ = fmt::format(" (its meeting place is held by user {})", user ? static_cast<long long>(*user) : -1);
      return {};
    }
    const auto hello = encode(Hello{protocol_version, static_cast<std::uint32_t>(place_.rank),
                                    static_cast<std::uint32_t>(place_.size), key});
    if (send_all(host.get(), hello, deadline_) != Io::done) return {};
    FrameHeader answer;
    const Io io = receive_header(host, answer, nullptr);
    if (io == Io::would_block) fail(fmt::format("rank 0 listens but did not answer within {} ms", deadline_.timeout_ms()));
    if (io != Io::done) {
      last_problem_ = " (a process at its meeting place hung up)";
      return {};
    }
    if (answer.kind == FrameKind::turned_away) fail(fmt::format("rank 0 does not admit this process: {}", text_of(host, answer)));
    if (answer.kind == FrameKind::ended) fail(text_of(host, answer));
    if (answer.kind != FrameKind::welcome) fail("rank 0 answered the hello with something else than a welcome");
    return host;
  }

  void take_pair(const UniqueFd& host, std::vector<UniqueFd>& peers) {
    FrameHeader header;
    UniqueFd end;
    const Io io = receive_header(host, header, &end);
    if (io == Io::would_block)
      fail(fmt::format("rank 0 is there, but some other rank did not come to the meeting within {} ms", deadline_.timeout_ms()));
    if (io != Io::done) fail("rank 0 left during the meeting");
    if (header.kind == FrameKind::ended) fail(text_of(host, header));
    const bool good = header.kind == FrameKind::pair && header.value > 0 && header.value < peers.size() &&
                      header.value != static_cast<std::uint32_t>(place_.rank) && !peers[header.value];
    if (!good) fail("rank 0 sent a socket for a rank that needs none");
    if (!end)
      throw SystemError(fmt::format("{}: the socket to rank {} did not arrive; raise the limit of open files (ulimit -n)",
                                    who(place_), header.value), place_.rank);
    peers[header.value] = std::move(end);
  }

  Io receive_header(const UniqueFd& host, FrameHeader& header, UniqueFd* descriptor) {
    std::array<std::byte, frame_bytes> bytes{};
    const Io io = receive_all(host.get(), bytes, verdict_deadline_, descriptor);
    if (io != Io::done) return io;
    const auto parsed = parse_frame(bytes);
    if (!parsed) fail("rank 0 sent something that is no message of a meeting");
    header = *parsed;
    return Io::done;
  }

  std::string text_of(const UniqueFd& host, const FrameHeader& header) {
    std::array<std::byte, max_text_bytes> bytes{};
    const auto text = std::span(bytes).first(std::min<std::size_t>(header.length, bytes.size()));
    receive_all(host.get(), text, Deadline::in_ms(grace_ms));
    return printable(text);
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw PeerError(fmt::format("{}: {}", who(place_), why), place_.rank);
  }

  const MeetingPlace& place_;
  const Deadline deadline_;
  const Deadline verdict_deadline_;
  std::string last_problem_;
};

}  // namespace

std::vector<UniqueFd> detail::join_meeting(const MeetingPlace& place, const Deadline& deadline) {
  return Guest(place, deadline).run();
}

}  // namespace sluice::boot
