#include "trace/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "core/clock.h"
#include "core/file_limit.h"
#include "trace/entries.h"

namespace sluice::trace {

namespace {

using core::read_clock;

constexpr std::int64_t copy_slots = 4096;

// The processes of a machine read one clock; what is left is the time that reading takes.
std::int64_t clock_error_ns() {
  std::int64_t least = 1'000'000;
  for (int i = 0; i < 64; ++i) {
    const std::int64_t first = read_clock(CLOCK_MONOTONIC);
    least = std::min(least, read_clock(CLOCK_MONOTONIC) - first);
  }
  return std::max<std::int64_t>(least, 1);
}

template <std::size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  std::memset(to, 0, N);
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

FileHeader header_for(const Identity& who, std::int64_t slots) {
  FileHeader header;
  header.rank = who.rank;
  header.ranks = who.ranks;
  header.channels = who.channels;
  header.slots = slots;
  header.copy_slots = copy_slots;
  header.process = getpid();
  header.made_ns = read_clock(CLOCK_MONOTONIC);
  header.made_unix_ns = read_clock(CLOCK_REALTIME);
  header.clock_error_ns = clock_error_ns();
  copy_text(header.engine, who.engine);
  copy_text(header.boot_id, boot_id());
  copy_text(header.host, host_name());
  return header;
}

[[noreturn]] void fail(const std::string& what, int error, int rank) {
  throw SystemError(fmt::format("trace of rank {}: {}: {}; name another folder in trace_dir or SLUICE_TRACE, or trace fewer operations",
                                rank, what, std::generic_category().message(error)),
                    rank);
}

// Its blocks are taken at once: a disk that is full later would end the process at a write to the mapping.
int make_file(const std::string& folder, const FileHeader& header) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(fmt::format("cannot make the folder \"{}\"", folder), error.value(), header.rank);
  static std::atomic<int> made{0};
  std::string path;
  int file = -1;
  do {
    path = fmt::format("{}/{}.{}.{}.rank-{}.trace", folder, header.host, header.process, made++, header.rank);
    file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  } while (file < 0 && errno == EEXIST);
  if (file < 0) fail(fmt::format("cannot make \"{}\"", path), errno, header.rank);
  const std::uint64_t bytes = file_bytes(header);
  const int full = bytes > core::file_limit() ? EFBIG : ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (full != 0) {
    ::close(file);
    ::unlink(path.c_str());
    fail(fmt::format("cannot take {} bytes for \"{}\"", bytes, path), full, header.rank);
  }
  return file;
}

}  // namespace

Recorder::Recorder(const Identity& who, std::int64_t slots, const std::string& folder) {
  FileHeader made = header_for(who, slots);
  bytes_ = file_bytes(made);
  const int file = folder.empty() ? -1 : make_file(folder, made);
  const int flags = folder.empty() ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const base = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, file, 0);
  const int error = errno;
  if (file >= 0) ::close(file);
  if (base == MAP_FAILED) fail(fmt::format("cannot map {} bytes in \"{}\"", bytes_, folder), error, who.rank);
  base_ = static_cast<std::byte*>(base);
  header() = made;
  std::memcpy(header().magic, file_magic, sizeof(file_magic));
}

Recorder::~Recorder() { ::munmap(base_, bytes_); }

void Recorder::name(const std::string& communicator) { copy_text(header().communicator, communicator); }

std::vector<OperationTrace> Recorder::operations() const { return read_ring(ring()); }

}  // namespace sluice::trace
