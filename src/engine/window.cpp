#include "engine/window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "core/file_limit.h"

namespace sluice::engine {

namespace {

// A window that shrank would end its peers with a signal.
constexpr int fixed_size = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::int64_t available_bytes() {
  std::ifstream in("/proc/meminfo");
  std::string name, unit;
  for (std::int64_t kib = 0; in >> name >> kib; std::getline(in, unit)) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return -1;
}

[[noreturn]] void no_memory(const char* what, int rank, std::size_t bytes) {
  throw SystemError(fmt::format("communicator on rank {}: {} of {} bytes for the window failed: {} ({} bytes available)",
                                rank, what, bytes, std::strerror(errno), available_bytes()), rank);
}

std::shared_ptr<Mapping> map(int fd, int flags, std::size_t bytes, int rank) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) no_memory("mmap", rank, bytes);
  // Rows are streamed through: with 4 KiB pages every row costs several misses of the TLB.
  madvise(base, bytes, MADV_HUGEPAGE);
  // A forked child of the user must not write to the peers.
  madvise(base, bytes, MADV_DONTFORK);
  return std::make_shared<Mapping>(base, bytes);
}

}  // namespace

void together(boot::GroupState& group, const std::function<void()>& step) {
  const boot::Trouble trouble = boot::trouble_of(step);
  std::vector<std::vector<std::byte>> all;
  try {
    all = group.all_gather(std::as_bytes(std::span(trouble.text)));
  } catch (const Error&) {
    if (!trouble.error) throw;  // else the own failure says more
  }
  if (trouble.error) std::rethrow_exception(trouble.error);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    throw PeerError(fmt::format("communicator on rank {}: rank {} refused: {}", group.rank(), r,
                                std::string(reinterpret_cast<const char*>(all[r].data()), all[r].size())), group.rank());
  }
}

Mapping::~Mapping() { munmap(base_, bytes_); }

Windows::Windows(boot::GroupState& group, std::int64_t bytes)
    : rank_(group.rank()), bytes_(static_cast<std::size_t>(bytes)), mappings_(static_cast<std::size_t>(group.size())) {
  together(group, [&] { take(group, bytes); });
}

void Windows::take(boot::GroupState& group, std::int64_t bytes) {
  const std::int64_t free = available_bytes();
  if (free >= 0 && bytes > free / group.size()) {
    constexpr double gib = 1 << 30;
    throw SystemError(fmt::format("communicator on rank {}: the windows of this machine need {} x {} bytes ({:.1f} GiB), but {} "
                                  "({:.1f} GiB) are available; lower max_tokens, channels, capacity or arena_bytes",
                                  rank_, group.size(), bytes, static_cast<double>(bytes) / gib * group.size(), free,
                                  static_cast<double>(free) / gib), rank_);
  }
  auto& own = mappings_[static_cast<std::size_t>(rank_)];
  if (group.in_one_process()) {
    own = map(-1, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, bytes_, rank_);
    return;
  }
  if (const std::uint64_t most = core::file_limit(); most < bytes_) {
    throw SystemError(fmt::format("communicator on rank {}: the window needs a file in memory of {} bytes, but files of this "
                                  "process may have {}; raise that limit (ulimit -f), or lower max_tokens, channels, capacity "
                                  "or arena_bytes", rank_, bytes_, most), rank_);
  }
  memory_ = boot::UniqueFd(memfd_create("sluice-window", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory_ || ftruncate(memory_.get(), bytes) != 0 || fcntl(memory_.get(), F_ADD_SEALS, fixed_size) != 0) {
    no_memory("memfd", rank_, bytes_);
  }
  own = map(memory_.get(), MAP_SHARED | MAP_NORESERVE, bytes_, rank_);
}

void Windows::connect(boot::GroupState& group) {
  if (group.in_one_process()) {
    share_objects(group, mappings_);
    return group.barrier();
  }
  const std::vector<boot::UniqueFd> descriptors = group.exchange_descriptors(memory_.get());
  together(group, [&] {
    for (int r = 0; r < group.size(); ++r) {
      if (r != rank_) map_peer(r, descriptors[static_cast<std::size_t>(r)].get());
    }
  });
  memory_ = {};
}

void Windows::map_peer(int rank, int fd) {
  struct stat info {};
  const int seals = fcntl(fd, F_GET_SEALS);  // -1: it can have none
  const bool sealed = seals >= 0 && (seals & fixed_size) == fixed_size;
  if (!sealed) {
    throw PeerError(fmt::format("communicator on rank {}: the window of rank {} is memory whose size can change", rank_, rank), rank_);
  }
  if (fstat(fd, &info) != 0 || info.st_size != static_cast<off_t>(bytes_)) {
    throw PeerError(fmt::format("communicator on rank {}: the window of rank {} has {} bytes, but {} are expected",
                                rank_, rank, info.st_size, bytes_), rank_);
  }
  mappings_[static_cast<std::size_t>(rank)] = map(fd, MAP_SHARED | MAP_NORESERVE, bytes_, rank_);
}

}  // namespace sluice::engine
