// The bytes that other processes send in a meeting and after it.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "boot/introduction.h"
#include "boot/node.h"
#include "boot/wire.h"

using namespace sluice::boot;

namespace {

void check(bool good) {
  if (!good) std::abort();
}

template <class Parsed, class Parse>
void round_trip(std::span<const std::byte> bytes, const Parsed& parsed, Parse parse) {
  const auto again = encode(parsed);
  check(again.size() == bytes.size() && parse(again).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const KeyDigest key = digest_of("job");
  if (const auto hello = parse_hello(bytes)) {
    round_trip(bytes, *hello, parse_hello);
    for (const int ranks : {2, 3, 128})
      if (objection(*hello, ranks, key).empty()) check(hello->rank > 0 && hello->rank < static_cast<std::uint32_t>(ranks) && hello->key == key);
  }
  if (const auto frame = parse_frame(bytes)) {
    round_trip(bytes, *frame, parse_frame);
    check(frame->length <= max_message_bytes);
  }
  if (const auto node = parse_node(bytes)) round_trip(bytes, *node, parse_node);
  if (const auto introduction = parse_introduction(bytes)) round_trip(bytes, *introduction, parse_introduction);
  const std::string text = printable(bytes);
  check(text.size() <= max_text_bytes);
  for (const char c : text) check(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  return 0;
}
