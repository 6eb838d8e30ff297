#include "cli/shared_block.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>

namespace sluice::cli {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::byte* map_shared(std::size_t bytes, int fd) {
  const int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED)
    throw std::runtime_error(fmt::format("mapping {} bytes of memory that the ranks share failed: {}; lower --tokens or "
                                         "--hidden, or take fewer --ranks", bytes, std::strerror(errno)));
  madvise(at, bytes, MADV_HUGEPAGE);  // where the system allows it for shared memory
  return static_cast<std::byte*>(at);
}

}  // namespace

SharedBlock::SharedBlock(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) data_ = map_shared(bytes, -1);
}

SharedBlock::SharedBlock(std::size_t bytes, const Group& group) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool owner = group.rank() == 0;
  int fd = owner ? memfd_create("sluice-cli", MFD_CLOEXEC) : -1;
  if (owner && (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0)) fail("memfd");
  const std::string mine = owner ? fmt::format("/proc/{}/fd/{}", getpid(), fd) : "";
  const auto paths = group.all_gather(std::as_bytes(std::span(mine.data(), mine.size())));
  if (!owner) {
    const std::string path(reinterpret_cast<const char*>(paths[0].data()), paths[0].size());
    fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) fail("opening the memory of rank 0 at " + path);
  }
  data_ = map_shared(bytes, fd);
  group.barrier();  // until all have opened rank 0's descriptor
  close(fd);
}

SharedBlock::~SharedBlock() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace sluice::cli
