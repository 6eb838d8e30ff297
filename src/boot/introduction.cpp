#include "boot/introduction.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include <fmt/core.h>
#include <sluice/errors.h>

namespace sluice::boot {
namespace {

constexpr char magic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'a', 'g'};

// Everything before the node.
struct Head {
  char magic[8];
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t size;
  std::uint32_t refused;
  std::array<std::uint64_t, 2> nonce;
};
static_assert(sizeof(Head) + node_bytes == introduction_bytes);

std::string who(const Introduction& mine) { return fmt::format("from_all_gather on rank {} of {}", mine.rank, mine.size); }

}  // namespace

Introduction introduce(int rank, int size) {
  Introduction mine;
  mine.rank = rank;
  mine.size = size;
  mine.node = this_node();
  ssize_t got = 0;
  do {
    got = ::getrandom(mine.nonce.data(), sizeof mine.nonce, 0);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof mine.nonce))
    throw SystemError(fmt::format("{}: the kernel gives no random bytes: {}", who(mine), std::strerror(errno)), rank);
  return mine;
}

std::array<std::byte, introduction_bytes> encode(const Introduction& introduction) {
  Head head{{}, introduction.version, introduction.rank, introduction.size, introduction.refused, introduction.nonce};
  std::memcpy(head.magic, magic, sizeof magic);
  std::array<std::byte, introduction_bytes> bytes{};
  std::memcpy(bytes.data(), &head, sizeof head);
  const auto node = encode(introduction.node);
  std::memcpy(bytes.data() + sizeof head, node.data(), node.size());
  return bytes;
}

std::optional<Introduction> parse_introduction(std::span<const std::byte> bytes) {
  if (bytes.size() != introduction_bytes) return std::nullopt;
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::memcmp(head.magic, magic, sizeof magic) != 0) return std::nullopt;
  const auto node = parse_node(bytes.subspan(sizeof head));
  return Introduction{head.version, head.rank, head.size, head.refused, head.nonce, *node};
}

std::vector<Introduction> check_introductions(const std::vector<std::vector<std::byte>>& messages, const Introduction& mine) {
  if (messages.size() != static_cast<std::size_t>(mine.size))
    throw ArgumentError(fmt::format("{}: the all_gather that was given returned {} messages, it must return one of each of the {} "
                                    "ranks", who(mine), messages.size(), mine.size), mine.rank);
  std::vector<Introduction> all;
  for (std::size_t r = 0; r < messages.size(); ++r) {
    const auto theirs = parse_introduction(messages[r]);
    if (!theirs)
      throw ArgumentError(fmt::format("{}: the all_gather that was given returned {} bytes for rank {} that are not the message "
                                      "of a rank", who(mine), messages[r].size(), r), mine.rank);
    if (theirs->version != protocol_version)
      throw PeerError(fmt::format("{}: rank {} speaks version {} of the meeting protocol, this rank {}; use one Sluice for all "
                                  "ranks", who(mine), r, theirs->version, protocol_version), mine.rank);
    if (theirs->refused != 0) throw PeerError(fmt::format("{}: rank {} refused: its arguments are wrong", who(mine), r), mine.rank);
    if (theirs->rank != static_cast<int>(r) || theirs->size != mine.size)
      throw PeerError(fmt::format("{}: the message at place {} is of rank {} of {}; all ranks must give the same size and each "
                                  "its own rank", who(mine), r, theirs->rank, theirs->size), mine.rank);
    all.push_back(*theirs);
  }
  std::vector<Node> nodes;
  for (const Introduction& i : all) nodes.push_back(i.node);
  require_one_node(who(mine), mine.rank, nodes);
  return all;
}

std::string job_key_of(const std::vector<Introduction>& all) {
  return fmt::format("all_gather;{:016x}{:016x}", all[0].nonce[0], all[0].nonce[1]);
}

}  // namespace sluice::boot
