#include "boot/exchange.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "boot/meeting.h"
#include "boot/sockets.h"

namespace sluice::boot {
namespace {

// Descriptors under way are limited per user; a full queue of them does not show in poll().
constexpr int descriptor_retry_ms = 2;

class Pair {
 public:
  Pair(int fd, int peer, const std::array<std::byte, frame_bytes>& header, const Contribution& mine, std::uint32_t sequence)
      : fd_(fd), peer_(peer), header_(header), mine_(mine), sequence_(sequence), theirs_(std::make_shared<Contribution>()) {}

  bool sent() const { return out_ == frame_bytes + mine_.bytes.size(); }
  bool received() const { return in_ >= frame_bytes && in_ == frame_bytes + theirs_->bytes.size(); }
  bool between_frames() const { return out_ == 0 || sent(); }
  bool waits_for_descriptors() const { return out_ == 0 && mine_.descriptor; }
  int fd() const { return fd_; }
  int peer() const { return peer_; }
  std::shared_ptr<Contribution> take() { return std::move(theirs_); }

  // As much as goes without waiting. Returns what is wrong, or nothing.
  std::string send() {
    while (!sent()) {
      const bool head = out_ < frame_bytes;
      const auto part = head ? std::span<const std::byte>(header_).subspan(out_)
                             : std::span<const std::byte>(mine_.bytes).subspan(out_ - frame_bytes);
      const Progress now = send_some(fd_, part, out_ == 0 ? mine_.descriptor.get() : -1);
      if (now.state == Io::would_block) return {};
      if (now.state == Io::closed) return last_words();
      if (now.state == Io::failed) return fmt::format("sending to rank {} failed: {}", peer_, std::strerror(errno));
      out_ += now.bytes;
    }
    return {};
  }

  std::string receive() {
    while (!received()) {
      const bool head = in_ < frame_bytes;
      const auto part = head ? std::span(frame_).subspan(in_) : std::span(theirs_->bytes).subspan(in_ - frame_bytes);
      const Progress now = receive_some(fd_, part, head ? &theirs_->descriptor : nullptr);
      if (now.state == Io::would_block) return {};
      if (now.state == Io::closed) return fmt::format("rank {} is gone", peer_);
      if (now.state == Io::failed) return fmt::format("receiving from rank {} failed: {}", peer_, std::strerror(errno));
      in_ += now.bytes;
      if (in_ != frame_bytes || !head) continue;
      std::string wrong = judge_header();
      if (!wrong.empty()) return wrong;
    }
    return ended_ ? fmt::format("rank {} gave up: {}", peer_, printable(theirs_->bytes)) : std::string();
  }

 private:
  std::string judge_header() {
    const auto frame = parse_frame(frame_);
    if (!frame || frame->kind < FrameKind::ended || (frame->value != sequence_ && frame->kind < FrameKind::gave_up &&
                                                     frame->kind != FrameKind::ended))
      return fmt::format("rank {} sent something that is no message of this group", peer_);
    if (frame->kind == FrameKind::descriptors && !theirs_->descriptor)
      return fmt::format("the descriptor of rank {} did not arrive; raise the limit of open files (ulimit -n)", peer_);
    ended_ = frame->kind == FrameKind::gave_up || frame->kind == FrameKind::ended;
    theirs_->kind = frame->kind;
    theirs_->bytes.resize(frame->length);
    return {};
  }

  // The peer has closed its end. If it said why, that is still in the queue, perhaps behind an ordinary message.
  std::string last_words() {
    while (true) {
      if (std::string wrong = receive(); !wrong.empty()) return wrong;
      if (!received()) return fmt::format("rank {} is gone", peer_);
      in_ = 0;
      theirs_ = std::make_shared<Contribution>();
    }
  }

  int fd_;
  int peer_;
  const std::array<std::byte, frame_bytes>& header_;
  const Contribution& mine_;
  std::uint32_t sequence_;
  std::size_t out_ = 0;
  std::size_t in_ = 0;
  bool ended_ = false;
  std::array<std::byte, frame_bytes> frame_{};
  std::shared_ptr<Contribution> theirs_;
};

// Sends and receives until all is done. Returns the first thing that goes wrong.
std::optional<Failure> move_all(std::vector<Pair>& pairs, const Deadline& deadline) {
  std::vector<pollfd> entries(pairs.size());
  // Most often everything fits into the socket buffers, and no poll is needed for sending.
  for (Pair& p : pairs)
    if (std::string wrong = p.send(); !wrong.empty()) return Failure{p.peer(), wrong};
  for (;;) {
    bool done = true;
    bool retry_soon = false;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Pair& p = pairs[i];
      const bool retry = p.waits_for_descriptors();
      const int events = (p.received() ? 0 : POLLIN) | (p.sent() || retry ? 0 : POLLOUT);
      entries[i] = {events != 0 ? p.fd() : -1, static_cast<short>(events), 0};
      done = done && p.sent() && p.received();
      retry_soon = retry_soon || retry;
    }
    if (done) return std::nullopt;
    if (deadline.passed()) break;
    const int n = ::poll(entries.data(), entries.size(), deadline.poll_ms(retry_soon ? descriptor_retry_ms : -1));
    if (n < 0) continue;  // a signal
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (entries[i].revents == 0 && !pairs[i].waits_for_descriptors()) continue;
      std::string wrong = pairs[i].receive();
      if (wrong.empty()) wrong = pairs[i].send();
      if (!wrong.empty()) return Failure{pairs[i].peer(), wrong};
    }
  }
  for (const Pair& p : pairs)
    if (!p.received()) return Failure{p.peer(), fmt::format("rank {} did not come within {} ms", p.peer(), deadline.timeout_ms())};
  for (const Pair& p : pairs)
    if (!p.sent()) return Failure{p.peer(), fmt::format("rank {} did not take its message within {} ms", p.peer(), deadline.timeout_ms())};
  return std::nullopt;
}

// Whose ends are closed. A peer that left because another was lost closed its end after that one did, so the first to
// go is among them.
std::string all_gone(const std::vector<Pair>& pairs) {
  std::vector<pollfd> ends;
  for (const Pair& p : pairs) ends.push_back({p.fd(), 0, 0});
  ::poll(ends.data(), ends.size(), 0);
  std::vector<int> gone;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (ends[i].revents & (POLLHUP | POLLERR)) gone.push_back(pairs[i].peer());
  }
  std::sort(gone.begin(), gone.end());
  std::string text;
  for (const int rank : gone) text += fmt::format("{}rank {} is gone", text.empty() ? "" : ", ", rank);
  return text;
}

}  // namespace

ExchangeResult exchange(const std::vector<UniqueFd>& peers, int rank, std::uint32_t sequence, Contribution contribution,
                        const Deadline& deadline) {
  // Nothing is allocated behind the first message but for what peers say.
  ExchangeResult result;
  result.all.resize(peers.size());
  result.all[static_cast<std::size_t>(rank)] = std::make_shared<Contribution>(std::move(contribution));
  const Contribution& mine = *result.all[static_cast<std::size_t>(rank)];
  const auto header = encode(FrameHeader{mine.kind, sequence, mine.bytes.size()});
  std::vector<Pair> pairs;
  pairs.reserve(peers.size());
  // Starting behind the own rank, so that not all ranks write to rank 0 first.
  for (std::size_t i = 1; i < peers.size(); ++i) {
    const std::size_t peer = (static_cast<std::size_t>(rank) + i) % peers.size();
    pairs.emplace_back(peers[peer].get(), static_cast<int>(peer), header, mine, sequence);
  }
  result.failure = move_all(pairs, deadline);
  if (result.failure) {
    const bool gone = result.failure->reason == fmt::format("rank {} is gone", result.failure->rank);
    if (std::string all = gone ? all_gone(pairs) : ""; !all.empty()) result.failure->reason = std::move(all);
    for (const Pair& p : pairs)
      if (p.between_frames()) detail::tell(p.fd(), FrameKind::gave_up, result.failure->reason);
    return result;
  }
  for (Pair& p : pairs) result.all[static_cast<std::size_t>(p.peer())] = p.take();
  return result;
}

}  // namespace sluice::boot
