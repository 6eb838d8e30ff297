// Rank 0's part of the meeting: admit the others, then give each pair its socket.
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include <fmt/core.h>
#include <sluice/errors.h>

#include "boot/meeting.h"
#include "boot/sockets.h"

namespace sluice::boot {
namespace {

using namespace detail;

// Has connected and not yet said who it is.
struct Stranger {
  UniqueFd fd;
  Deadline patience;
  std::array<std::byte, hello_bytes> hello{};
  std::size_t got = 0;
};

class Host {
 public:
  Host(const MeetingPlace& place, const Deadline& deadline)
      : place_(place), deadline_(deadline), key_(digest_of(place.job_key)), members_(static_cast<std::size_t>(place.size)) {}

  std::vector<UniqueFd> run() {
    listen();
    while (admitted_ < place_.size - 1) {
      if (deadline_.passed()) fail(absent());
      look_once();
    }
    strangers_.clear();
    listener_ = UniqueFd();
    connect_pairs();
    return std::move(members_);
  }

 private:
  void listen() {
    const std::string name = meeting_name(key_);
    int problem = 0;
    while (!(listener_ = listen_at(name, problem))) {
      if (problem == EADDRINUSE && !held_since_) {
        held_since_ = Deadline::Clock::now();
        knock(name);
      }
      if (problem != EADDRINUSE)
        throw SystemError(fmt::format("{}: the meeting place cannot be opened: {}", who(place_), std::strerror(problem)), 0);
      if (deadline_.passed())
        throw PeerError(fmt::format("{}: another process holds the meeting place @{}: rank 0 is there twice, or another "
                                    "job has the same key; give each job its own MASTER_PORT", who(place_), name), 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (held_since_) held_ms_ = std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - *held_since_).count();
  }

  // Whoever holds the place may be rank 0 of the same job: what it turns away, it names when its meeting fails.
  void knock(const std::string& name) const {
    int problem = 0;
    const UniqueFd holder = connect_to(name, problem);
    if (holder && user_of_peer(holder.get()) == ::geteuid())
      send_some(holder.get(), encode(Hello{protocol_version, 0, static_cast<std::uint32_t>(place_.size), key_}));
  }

  // Waits for the next thing to happen: a connection, bytes of a hello, or a member that leaves.
  void look_once() {
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
    for (const Stranger& s : strangers_) entries.push_back({s.fd.get(), POLLIN, 0});
    for (const UniqueFd& m : members_) entries.push_back({m.get(), POLLRDHUP, 0});  // -1 is skipped
    if (::poll(entries.data(), entries.size(), deadline_.poll_ms(strangers_.empty() ? -1 : 100)) < 0) return;

    for (std::size_t r = 0; r < members_.size(); ++r)
      if (entries[1 + strangers_.size() + r].revents != 0) fail(fmt::format("rank {} left during the meeting", r));
    for (std::size_t i = 0; i < strangers_.size(); ++i)
      if (entries[1 + i].revents != 0) listen_to(strangers_[i]);
    std::erase_if(strangers_, [](const Stranger& s) { return !s.fd || s.patience.passed(); });
    if (entries[0].revents != 0) accept_all();
  }

  void accept_all() {
    for (;;) {
      UniqueFd fd = accept_from(listener_.get());
      if (!fd) {
        const bool too_many_files = errno == EMFILE || errno == ENFILE;
        if (too_many_files && strangers_.empty())
          throw SystemError(fmt::format("{}: {} connections are too many for this process: {}; raise ulimit -n", who(place_),
                                        admitted_ + 1, std::strerror(errno)), 0);
        if (too_many_files) strangers_.erase(strangers_.begin());
        return;
      }
      if (user_of_peer(fd.get()) != ::geteuid()) continue;  // another user: not even an answer
      if (strangers_.size() >= max_strangers) strangers_.erase(strangers_.begin());
      strangers_.push_back({std::move(fd), Deadline::in_ms(hello_patience_ms), {}, 0});
    }
  }

  // Takes what has come; a stranger that is done with, admitted or not, has no descriptor afterwards.
  void listen_to(Stranger& stranger) {
    const Progress now = receive_some(stranger.fd.get(), std::span(stranger.hello).subspan(stranger.got));
    if (now.state == Io::would_block) return;
    stranger.got += now.bytes;
    if (now.state == Io::done && stranger.got < hello_bytes) return;
    UniqueFd fd = std::move(stranger.fd);
    const auto hello = parse_hello(std::span(stranger.hello).first(stranger.got));
    if (!hello) return;
    std::string no = objection(*hello, place_.size, key_);
    if (no.empty() && members_[hello->rank]) no = fmt::format("it says that it is rank {}, which is here already", hello->rank);
    if (no.empty()) {
      tell(fd.get(), FrameKind::welcome, {});
      members_[hello->rank] = std::move(fd);
      ++admitted_;
    } else {
      tell(fd.get(), FrameKind::turned_away, no);
      last_objection_ = no;
    }
  }

  std::string absent() const {
    std::string list;
    int n = 0;
    for (std::size_t r = 1; r < members_.size(); ++r) {
      if (members_[r]) continue;
      if (++n <= 8) list += fmt::format("{}{}", n > 1 ? ", " : "", r);
    }
    if (n > 8) list += fmt::format(" and {} more", n - 8);
    std::string text = fmt::format("rank{} {} did not come to the meeting within {} ms", n > 1 ? "s" : "", list, deadline_.timeout_ms());
    if (held_ms_ >= 0)
      text += fmt::format("; in the first {} ms another process held the meeting place: rank 0 is there twice, or another job has "
                          "the same key; give each job its own MASTER_PORT", held_ms_);
    if (!last_objection_.empty()) text += fmt::format(" (a process was turned away: {})", last_objection_);
    return text;
  }

  [[noreturn]] void fail(const std::string& why) {
    for (const UniqueFd& m : members_)
      if (m) tell(m.get(), FrameKind::ended, why);
    throw PeerError(fmt::format("{}: {}", who(place_), why), 0);
  }

  // One pair at a time: rank 0 never holds more than two descriptors of other ranks, so 128 ranks do
  // not need 16 256 open files.
  void connect_pairs() {
    for (int a = 1; a < place_.size; ++a) {
      for (int b = a + 1; b < place_.size; ++b) {
        const auto [end_a, end_b] = make_pair_of_sockets();
        hand_out(a, b, end_a);
        hand_out(b, a, end_b);
      }
    }
  }

  void hand_out(int to, int peer, const UniqueFd& end) {
    const auto header = encode(FrameHeader{FrameKind::pair, static_cast<std::uint32_t>(peer), 0});
    const Io io = send_all(members_[static_cast<std::size_t>(to)].get(), header, deadline_.plus_ms(grace_ms), end.get());
    if (io == Io::would_block) fail(fmt::format("rank {} does not take its sockets", to));
    if (io != Io::done) fail(fmt::format("rank {} left during the meeting", to));
  }

  const MeetingPlace& place_;
  const Deadline deadline_;
  const KeyDigest key_;
  UniqueFd listener_;
  std::vector<Stranger> strangers_;
  std::vector<UniqueFd> members_;
  int admitted_ = 0;
  std::optional<Deadline::Clock::time_point> held_since_;  // when another process was first found at the meeting place
  long held_ms_ = -1;  // how long it stayed; -1: there was none
  std::string last_objection_;
};

}  // namespace

std::vector<UniqueFd> detail::host_meeting(const MeetingPlace& place, const Deadline& deadline) {
  return Host(place, deadline).run();
}

}  // namespace sluice::boot
