#include "boot/node.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/core.h>
#include <sluice/errors.h>

namespace sluice::boot {

Node this_node() {
  Node node;
  ::gethostname(node.host.data(), node.host.size() - 1);
  std::string identity;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!file.is_open() && (errno == EMFILE || errno == ENFILE)) {
    throw SystemError(fmt::format("meeting: this machine's boot id cannot be read: {}; raise the limit of open files (ulimit -n)",
                                  std::strerror(errno)));
  }
  // Without /proc the host name has to do.
  if (!std::getline(file, identity)) identity = node.host.data();
  char net_namespace[64] = {};
  if (::readlink("/proc/self/ns/net", net_namespace, sizeof net_namespace - 1) > 0) identity += net_namespace;
  node.id = digest_of(identity);
  return node;
}

std::array<std::byte, node_bytes> encode(const Node& node) {
  static_assert(sizeof node.id + sizeof node.host == node_bytes);
  std::array<std::byte, node_bytes> bytes{};
  std::memcpy(bytes.data(), &node.id, sizeof node.id);
  std::memcpy(bytes.data() + sizeof node.id, node.host.data(), node.host.size());
  return bytes;
}

std::optional<Node> parse_node(std::span<const std::byte> bytes) {
  if (bytes.size() != node_bytes) return std::nullopt;
  Node node;
  std::memcpy(&node.id, bytes.data(), sizeof node.id);
  std::memcpy(node.host.data(), bytes.data() + sizeof node.id, node.host.size());
  node.host.back() = 0;
  return node;
}

std::vector<int> number_nodes(const std::vector<Node>& of_rank) {
  std::vector<Node> seen;
  std::vector<int> numbers;
  for (const Node& node : of_rank) {
    const auto found = std::find(seen.begin(), seen.end(), node);
    numbers.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(node);
  }
  return numbers;
}

void require_one_node(const std::string& who, int rank, const std::vector<Node>& of_rank) {
  const auto numbers = number_nodes(of_rank);
  const auto other = std::find_if(numbers.begin(), numbers.end(), [](int n) { return n != 0; });
  if (other == numbers.end()) return;
  const auto r = static_cast<std::size_t>(other - numbers.begin());
  throw SystemError(
      fmt::format("{}: rank 0 is on node {} and rank {} on node {} (another machine, or a container with a network of its "
                  "own); more than one node is not supported yet, start all ranks on one",
                  who, printable(std::string_view(of_rank[0].host.data())), r, printable(std::string_view(of_rank[r].host.data()))),
      rank);
}

}  // namespace sluice::boot
