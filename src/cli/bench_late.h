// A rank that comes late on purpose.
#pragma once

#include <optional>
#include <string>

namespace sluice::cli {

enum class LateSide {
  host,   // its thread sleeps: the processor is free for others
  device  // the device works; the CPU engine has none, there the rank's thread computes
};

struct Late {
  int rank = 0;
  double ms = 0;
};

// "RANK:MS", a whole number and one from 0 to 60000.
std::optional<Late> parse_late(const std::string& text);

// "1:5:host"
std::string text_of(const Late& late, LateSide side);

// Returns after `late.ms`.
void be_late(const Late& late, LateSide side);

}  // namespace sluice::cli
