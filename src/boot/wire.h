// What processes say to each other: the bytes, and their checks. Everything is in the byte order of
// the machine, since both ends run on it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sluice::boot {

inline constexpr std::size_t max_message_bytes = std::size_t{16} << 20;
inline constexpr std::size_t max_text_bytes = 512;
inline constexpr std::uint32_t protocol_version = 1;

// 128 bits that stand for a job key. Not a secret and not proof against an attacker: who may join is
// decided by the user id of the socket's other end.
struct KeyDigest {
  std::uint64_t words[2] = {0, 0};
  bool operator==(const KeyDigest&) const = default;
};
KeyDigest digest_of(std::string_view key);
std::string hex_of(const KeyDigest& digest);

// The first bytes on a connection to rank 0.
struct Hello {
  std::uint32_t version = protocol_version;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  KeyDigest key;
};
inline constexpr std::size_t hello_bytes = 40;

std::array<std::byte, hello_bytes> encode(const Hello& hello);
// Empty unless the bytes have the right length and magic: then it is no message of ours, and gets no
// answer. The other fields are as the sender says; `objection` judges them.
std::optional<Hello> parse_hello(std::span<const std::byte> bytes);

// Why rank 0 of a meeting of `size` ranks with `key` does not admit the sender; empty: it does.
std::string objection(const Hello& hello, int size, const KeyDigest& key);

// Precedes everything that is sent after the hello.
enum class FrameKind : std::uint32_t {
  welcome = 1,      // rank 0 has admitted the sender of the hello
  turned_away = 2,  // it has not; text
  pair = 3,         // a descriptor: the socket to rank `value`
  ended = 4,        // the meeting has failed; text
  all_gather = 16, barrier = 17, descriptors = 18,  // `value`: running number; bytes
  have_descriptor = 19,  // opens an exchange of descriptors, `value`: running number
  refused = 20,     // takes part in collective number `value` only to say no; text
  gave_up = 21,     // will take part in nothing any more; text
  objects = 22,     // a collective of ranks that are threads: on no wire
};

struct FrameHeader {
  FrameKind kind = FrameKind::welcome;
  std::uint32_t value = 0;
  std::uint64_t length = 0;  // of what follows
};
inline constexpr std::size_t frame_bytes = 16;

std::array<std::byte, frame_bytes> encode(const FrameHeader& header);
// Empty for an unknown kind or a length above what the kind allows.
std::optional<FrameHeader> parse_frame(std::span<const std::byte> bytes);

// Makes foreign text fit for an error message: at most max_text_bytes, no control characters.
std::string printable(std::string_view text);
std::string printable(std::span<const std::byte> text);

}  // namespace sluice::boot
