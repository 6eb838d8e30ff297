#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

class TraceFile {
 public:
  // Does not wait for the writer of a pipe.
  explicit TraceFile(const std::string& path) : TraceFile(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat what {};
    if (file_ < 0 || ::fstat(file_, &what) != 0) fail();
    if (!S_ISREG(what.st_mode)) broken("it is no ordinary file");
  }
  ~TraceFile() {
    if (file_ >= 0) ::close(file_);
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  [[noreturn]] void broken(const char* why) const { throw ArgumentError(fmt::format("\"{}\" is not a trace of Sluice: {}", path_, why)); }

  // The first `bytes`, or fewer where it ends.
  std::size_t read(void* to, std::size_t bytes) const {
    std::size_t have = 0;
    while (have < bytes) {
      const ssize_t got = ::pread(file_, static_cast<std::byte*>(to) + have, bytes - have, static_cast<off_t>(have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail();
      if (got == 0) break;
      have += static_cast<std::size_t>(got);
    }
    return have;
  }

 private:
  TraceFile(const std::string& path, int file) : path_(path), file_(file) {}

  [[noreturn]] void fail() const {
    throw SystemError(fmt::format("trace \"{}\" cannot be read: {}", path_, std::generic_category().message(errno)));
  }

  const std::string& path_;
  int file_;
};

template <std::size_t N>
std::string text_of(const char (&text)[N]) {
  return {text, strnlen(text, N)};
}

FileHeader read_header(const TraceFile& file) {
  std::byte bytes[trace::header_bytes];
  FileHeader header;
  if (file.read(bytes, sizeof(bytes)) < sizeof(bytes)) file.broken("it is shorter than a header");
  std::memcpy(static_cast<void*>(&header), bytes, sizeof(header));
  if (std::memcmp(header.magic, trace::file_magic, sizeof(header.magic)) != 0) file.broken("its first bytes are others");
  const bool shape = header.ranks >= 1 && header.ranks <= limits::ranks_per_node && header.rank >= 0 && header.rank < header.ranks &&
                     header.channels >= 1 && header.channels <= limits::channels && header.slots >= 1 &&
                     header.slots <= limits::trace_operations && header.copy_slots >= 0 && header.copy_slots <= limits::trace_operations;
  if (!shape) file.broken("its header names an impossible shape");
  return header;
}

std::vector<CopyTrace> read_copies(const FileHeader& header, const std::byte* base) {
  std::vector<CopyTrace> copies;
  const std::int64_t recorded = trace::at_most(header.copies, trace::most_rows);
  for (std::int64_t i = std::max<std::int64_t>(0, recorded - header.copy_slots); i < recorded; ++i) {
    trace::CopyEntry entry;
    std::memcpy(&entry, base + trace::copies_offset(header) + static_cast<std::size_t>(i % header.copy_slots) * sizeof(entry), sizeof(entry));
    const std::int64_t begun = trace::at_most(entry.begun_ns, trace::most_ns);
    const std::int64_t end = std::max(begun, trace::at_most(entry.end_ns, trace::most_ns));
    copies.push_back({begun, end, trace::at_most(entry.bytes, trace::most_bytes), entry.to_host != 0});
  }
  return copies;
}

}  // namespace

RankTrace read_trace(const std::string& path) {
  const TraceFile file(path);
  const FileHeader header = read_header(file);
  const std::size_t bytes = trace::file_bytes(header);
  std::vector<std::int64_t> words((bytes + sizeof(std::int64_t) - 1) / sizeof(std::int64_t));  // rings lie as they must
  if (file.read(words.data(), bytes) < bytes) file.broken("it is shorter than its header says");
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
  trace.made_ns = trace::at_most(header.made_ns, trace::most_ns);
  trace.made_unix_ns = trace::at_most(header.made_unix_ns, trace::most_ns);
  trace.clock_error_ns = trace::at_most(header.clock_error_ns, trace::most_ns);
  trace.operations = trace::read_ring(trace::ring_of(header, base), &trace.lost);
  trace.copies = read_copies(header, base);
  return trace;
}

}  // namespace sluice
