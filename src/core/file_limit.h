// How large a file of this process may become. Beyond it the kernel sends a signal that ends the process.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace sluice::core {

inline std::uint64_t file_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : ~std::uint64_t{0};
}

}  // namespace sluice::core
