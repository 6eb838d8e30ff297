// Which machine a rank runs on: ranks of one node can share memory and Unix sockets.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "boot/wire.h"

namespace sluice::boot {

// The id stands for the booted kernel and the network namespace: abstract socket names reach no
// further, so two containers on one machine that do not share it are two nodes. The host name is only
// for people: it can differ inside a node and be the same on two.
struct Node {
  KeyDigest id;
  std::array<char, 64> host{};  // zero-terminated

  bool operator==(const Node& other) const { return id == other.id; }
};
inline constexpr std::size_t node_bytes = 80;

Node this_node();
std::array<std::byte, node_bytes> encode(const Node& node);
std::optional<Node> parse_node(std::span<const std::byte> bytes);

// Numbers from 0 in order of first appearance.
std::vector<int> number_nodes(const std::vector<Node>& of_rank);

// Throws SystemError when there is more than one. `who` begins the sentence.
void require_one_node(const std::string& who, int rank, const std::vector<Node>& of_rank);

}  // namespace sluice::boot
