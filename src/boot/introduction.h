// What the ranks tell each other through the caller's own all-gather before they meet.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "boot/node.h"

namespace sluice::boot {

struct Introduction {
  std::uint32_t version = protocol_version;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint32_t refused = 0;  // not 0: this rank's arguments are wrong, it will not come
  std::array<std::uint64_t, 2> nonce{};
  Node node;
};
inline constexpr std::size_t introduction_bytes = 120;

// Of this process, with a nonce that nobody can guess.
Introduction introduce(int rank, int size);

std::array<std::byte, introduction_bytes> encode(const Introduction& introduction);
std::optional<Introduction> parse_introduction(std::span<const std::byte> bytes);

// Checks what an all-gather of `rank` returned and gives all introductions, by rank. Throws
// ArgumentError when it is no all-gather of the right messages, PeerError when a rank refused or
// differs, SystemError for several nodes.
std::vector<Introduction> check_introductions(const std::vector<std::vector<std::byte>>& messages, const Introduction& mine);

// The job key that all ranks compute from them.
std::string job_key_of(const std::vector<Introduction>& all);

}  // namespace sluice::boot
