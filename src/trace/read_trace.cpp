#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>

#include <sluice/errors.h>
#include <sluice/limits.h>
#include <sluice/trace.h>

#include "trace/entries.h"
#include "trace/file.h"

namespace sluice {

namespace {

using trace::FileHeader;

// Words, so that rings lie as they must.
std::vector<std::int64_t> load_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const auto fail = [&] {
    throw SystemError(fmt::format("trace \"{}\" cannot be read: {}", path, std::generic_category().message(errno)));
  };
  if (!file) fail();
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) fail();
  std::vector<std::int64_t> words(bytes.size() / sizeof(std::int64_t) + 1);
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  words.back() = static_cast<std::int64_t>(bytes.size());
  return words;
}

template <std::size_t N>
std::string text_of(const char (&text)[N]) {
  return {text, strnlen(text, N)};
}

FileHeader checked_header(const std::vector<std::int64_t>& words, const std::string& path) {
  const auto bytes = static_cast<std::size_t>(words.back());
  FileHeader header;
  const auto broken = [&](const char* why) { throw ArgumentError(fmt::format("\"{}\" is not a trace of Sluice: {}", path, why)); };
  if (bytes < trace::header_bytes) broken("it is shorter than a header");
  std::memcpy(static_cast<void*>(&header), words.data(), sizeof(header));
  if (std::memcmp(header.magic, trace::file_magic, sizeof(header.magic)) != 0) broken("its first bytes are others");
  const bool shape = header.ranks >= 1 && header.ranks <= limits::ranks_per_node && header.rank >= 0 && header.rank < header.ranks &&
                     header.channels >= 1 && header.channels <= limits::channels && header.slots >= 1 &&
                     header.slots <= limits::trace_operations && header.copy_slots >= 0 && header.copy_slots <= limits::trace_operations;
  if (!shape) broken("its header names an impossible shape");
  if (bytes < trace::file_bytes(header)) broken("it is shorter than its header says");
  return header;
}

std::vector<CopyTrace> read_copies(const FileHeader& header, const std::byte* base) {
  std::vector<CopyTrace> copies;
  const std::int64_t kept = std::clamp<std::int64_t>(header.copies, 0, header.copy_slots);
  for (std::int64_t i = header.copies - kept; i < header.copies; ++i) {
    trace::CopyEntry entry;
    std::memcpy(&entry, base + trace::copies_offset(header) + static_cast<std::size_t>(i % header.copy_slots) * sizeof(entry), sizeof(entry));
    copies.push_back({entry.begun_ns, entry.end_ns, entry.bytes, entry.to_host != 0});
  }
  return copies;
}

}  // namespace

RankTrace read_trace(const std::string& path) {
  std::vector<std::int64_t> words = load_file(path);
  const FileHeader header = checked_header(words, path);
  auto* const base = reinterpret_cast<std::byte*>(words.data());
  RankTrace trace;
  trace.communicator = text_of(header.communicator);
  trace.host = text_of(header.host);
  trace.boot_id = text_of(header.boot_id);
  trace.engine = text_of(header.engine);
  trace.process = header.process;
  trace.rank = header.rank;
  trace.ranks = header.ranks;
  trace.channels = header.channels;
  trace.made_ns = header.made_ns;
  trace.made_unix_ns = header.made_unix_ns;
  trace.clock_error_ns = header.clock_error_ns;
  trace.operations = trace::read_ring(trace::ring_of(header, base), &trace.lost);
  trace.copies = read_copies(header, base);
  return trace;
}

}  // namespace sluice
