// Files of router decisions come from outside: any bytes either parse or give a FileError.
#include <sluice/limits.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cli/routing_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  try {
    const cli::Decisions d =
        cli::parse_routing(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    const auto k = static_cast<std::size_t>(d.topk);
    if (d.topk < 1 || d.topk > limits::topk || d.ids.size() != d.weights.size() || d.ids.size() % k != 0)
      std::abort();
    for (const std::int32_t id : d.ids) {
      if (id < -1 || id >= limits::experts) std::abort();
    }
  } catch (const cli::FileError&) {
  }
  return 0;
}
