#include "boot/wire.h"

#include <cstring>
#include <type_traits>

#include <fmt/core.h>

namespace sluice::boot {
namespace {

constexpr char magic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'h', 'i'};

template <class T>
void put(std::byte*& to, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(to, &value, sizeof value);
  to += sizeof value;
}

template <class T>
T take(const std::byte*& from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  from += sizeof value;
  return value;
}

std::uint64_t fnv1a(std::string_view text, std::uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

// Length that a frame of this kind may have; -1 for an unknown kind.
long long longest(FrameKind kind) {
  switch (kind) {
    case FrameKind::welcome: case FrameKind::pair: case FrameKind::barrier: case FrameKind::descriptors:
    case FrameKind::have_descriptor:
      return 0;
    case FrameKind::turned_away: case FrameKind::ended: case FrameKind::refused: case FrameKind::gave_up:
      return static_cast<long long>(max_text_bytes);
    case FrameKind::all_gather: return static_cast<long long>(max_message_bytes);
    case FrameKind::objects: return -1;
  }
  return -1;
}

}  // namespace

KeyDigest digest_of(std::string_view key) {
  return {{fnv1a(key, 0xcbf29ce484222325ULL), fnv1a(key, 0x9ae16a3b2f90404fULL)}};
}

std::string hex_of(const KeyDigest& digest) { return fmt::format("{:016x}{:016x}", digest.words[0], digest.words[1]); }

std::array<std::byte, hello_bytes> encode(const Hello& hello) {
  std::array<std::byte, hello_bytes> bytes{};
  std::byte* to = bytes.data();
  put(to, magic);
  put(to, hello.version);
  put(to, hello.rank);
  put(to, hello.size);
  put(to, std::uint32_t{0});
  put(to, hello.key);
  return bytes;
}

std::optional<Hello> parse_hello(std::span<const std::byte> bytes) {
  if (bytes.size() != hello_bytes || std::memcmp(bytes.data(), magic, sizeof magic) != 0) return std::nullopt;
  const std::byte* from = bytes.data() + sizeof magic;
  Hello hello;
  hello.version = take<std::uint32_t>(from);
  hello.rank = take<std::uint32_t>(from);
  hello.size = take<std::uint32_t>(from);
  take<std::uint32_t>(from);
  hello.key = take<KeyDigest>(from);
  return hello;
}

std::string objection(const Hello& hello, int size, const KeyDigest& key) {
  if (hello.version != protocol_version)
    return fmt::format("it speaks version {} of the meeting protocol, rank 0 speaks {}; use one Sluice for all ranks",
                       hello.version, protocol_version);
  if (!(hello.key == key)) return "it belongs to another job";
  if (hello.size != static_cast<std::uint32_t>(size))
    return fmt::format("it says that the group has {} ranks, rank 0 says {}", hello.size, size);
  if (hello.rank == 0) return "it says that it is rank 0, which is here already";
  if (hello.rank >= hello.size) return fmt::format("it says that it is rank {} of {}", hello.rank, hello.size);
  return {};
}

std::array<std::byte, frame_bytes> encode(const FrameHeader& header) {
  std::array<std::byte, frame_bytes> bytes{};
  std::byte* to = bytes.data();
  put(to, header.kind);
  put(to, header.value);
  put(to, header.length);
  return bytes;
}

std::optional<FrameHeader> parse_frame(std::span<const std::byte> bytes) {
  if (bytes.size() != frame_bytes) return std::nullopt;
  const std::byte* from = bytes.data();
  FrameHeader header;
  header.kind = static_cast<FrameKind>(take<std::uint32_t>(from));
  header.value = take<std::uint32_t>(from);
  header.length = take<std::uint64_t>(from);
  const long long limit = longest(header.kind);
  if (limit < 0 || header.length > static_cast<std::uint64_t>(limit)) return std::nullopt;
  return header;
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, max_text_bytes));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return out;
}

std::string printable(std::span<const std::byte> text) {
  return printable(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
}

}  // namespace sluice::boot
