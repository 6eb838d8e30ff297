#include "cli/bench_late.h"

#include <fmt/format.h>
#include <sluice/limits.h>

#include <charconv>
#include <chrono>
#include <thread>

namespace sluice::cli {

std::optional<Late> parse_late(const std::string& text) {
  Late late;
  const char* const end = text.data() + text.size();
  const auto rank = std::from_chars(text.data(), end, late.rank);
  if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != ':') return {};
  const auto ms = std::from_chars(rank.ptr + 1, end, late.ms, std::chars_format::fixed);
  if (ms.ec != std::errc() || ms.ptr != end) return {};
  // The negation also catches what is no number.
  if (late.rank < 0 || late.rank >= limits::ranks_per_node || !(late.ms >= 0 && late.ms <= 60'000)) return {};
  return late;
}

std::string text_of(const Late& late, LateSide side) {
  return fmt::format("{}:{}:{}", late.rank, late.ms, side == LateSide::host ? "host" : "device");
}

void be_late(const Late& late, LateSide side) {
  const std::chrono::duration<double, std::milli> time(late.ms);
  if (side == LateSide::host) return std::this_thread::sleep_for(time);
  const auto end = std::chrono::steady_clock::now() + time;
  volatile double x = 1;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 200; ++i) x = x * 1.0000001 + 1e-9;
  }
}

}  // namespace sluice::cli
