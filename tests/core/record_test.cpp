// What ranks believe of each other's control records.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/agree.h"

namespace {

using namespace sluice;
using namespace sluice::core;

TEST(core, F6_a_record_that_names_memory_outside_of_its_window_is_refused) {
  constexpr std::int64_t window_bytes = 1 << 20;
  const PageLayout layout = page_layout(64, 2, 4, 1);
  std::vector<std::byte> page(static_cast<std::size_t>(layout.bytes()) + 64);
  void* start = page.data();
  std::size_t space = page.size();
  auto* const base =
      static_cast<std::byte*>(std::align(64, static_cast<std::size_t>(layout.bytes()), start, space));
  const auto record = [&](int source) -> ControlRecord& {
    return *reinterpret_cast<ControlRecord*>(base + layout.record_offset(0, source));
  };
  const auto verdict_with = [&](Place ControlRecord::*field, Place place) {
    for (int r = 0; r < 2; ++r) new (&record(r)) ControlRecord;
    record(0).rows = {0, 0, 4096};
    record(1).rows = {1, 0, 4096};
    record(1).*field = place;
    Verdict verdict;
    compare_records({base, layout, 0}, 2, window_bytes, verdict);
    return verdict;
  };
  EXPECT_EQ(verdict_with(&ControlRecord::rows, {1, 0, window_bytes}).outcome, Outcome::go);
  EXPECT_EQ(verdict_with(&ControlRecord::scales, {-1, 0, ~0ull}).outcome, Outcome::go);
  for (const auto field : {&ControlRecord::rows, &ControlRecord::scales, &ControlRecord::ids,
                           &ControlRecord::weights, &ControlRecord::values}) {
    for (const Place place :
         {Place{1, 0, window_bytes + 1}, Place{0, 0, 4096}, Place{77777, 0, 0}, Place{-2, 0, 0}}) {
      const Verdict verdict = verdict_with(field, place);
      EXPECT_EQ(verdict.outcome, Outcome::refused);
      EXPECT_EQ(verdict.rank, 1);
      EXPECT_EQ(verdict.refusal, Refusal::record);
    }
  }
}

}  // namespace
