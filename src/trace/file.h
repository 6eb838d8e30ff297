// The file of a traced rank: a header, the ring of operations, the ring of copies. Written through a mapping, so that
// it is whole whenever its process dies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/trace.h"

namespace sluice::trace {

inline constexpr char file_magic[8] = {'s', 'l', 'u', 'i', 'c', 'e', 'T', '1'};
inline constexpr std::size_t header_bytes = 4096;

struct FileHeader {
  char magic[8] = {};  // written last
  std::int32_t rank = 0, ranks = 0, channels = 0;
  std::int64_t slots = 0;       // of a channel, in entries
  std::int64_t copy_slots = 0;
  std::int64_t process = 0;
  std::int64_t made_ns = 0, made_unix_ns = 0, clock_error_ns = 0;
  std::int64_t copies = 0;      // recorded in all
  // Text, ended by a zero byte.
  char communicator[32] = {}, engine[16] = {}, boot_id[40] = {}, host[72] = {};
};
static_assert(sizeof(FileHeader) <= header_bytes);

struct CopyEntry {
  std::int64_t begun_ns = 0, end_ns = 0;
  std::int64_t bytes = 0;
  std::int64_t to_host = 0;
};

inline core::TraceRing ring_of(const FileHeader& header, std::byte* base) {
  return {reinterpret_cast<std::int64_t*>(base + header_bytes), header.slots, header.ranks, header.channels};
}
inline std::size_t copies_offset(const FileHeader& header) {
  const core::TraceRing shape{nullptr, header.slots, header.ranks, header.channels};
  return header_bytes + static_cast<std::size_t>(shape.total_words()) * sizeof(std::int64_t);
}
inline std::size_t file_bytes(const FileHeader& header) {
  return copies_offset(header) + static_cast<std::size_t>(header.copy_slots) * sizeof(CopyEntry);
}

}  // namespace sluice::trace
