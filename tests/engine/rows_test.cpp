// Copies, sums and targets of the CPU engine's rows, against core/numbers.h on every SIMD target.
#include <cctype>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include <sluice/errors.h>

#include "engine/rows_support.h"

namespace {

using namespace rows_test;
using namespace sluice::cpu;
namespace numbers = sluice::numbers;

// One sum: its rows lie at the ends of guarded memory.
struct Case {
  DataType in = DataType::bf16, out = DataType::bf16;
  std::int64_t n = 1;
  int count = 2;
  bool weighted = false, stream = false;
  int biases = 0;          // 0, 1 or 2
  std::size_t shift = 0;   // bytes that a row starts after the first byte of its memory; with `at_end`, none
  bool at_end = true;
  Mix mix = Mix::any_bits;
};

std::string text(const Case& c) {
  return std::string(name_of(c.in)) + " -> " + name_of(c.out) + ", n " + std::to_string(c.n) + ", rows " +
         std::to_string(c.count) + (c.weighted ? ", weighted" : "") + (c.stream ? ", stream" : "") + ", biases " +
         std::to_string(c.biases) + (c.at_end ? ", at end" : ", shift " + std::to_string(c.shift));
}

class SumTest {
 public:
  explicit SumTest(std::int64_t largest_n) {
    const auto bytes = static_cast<std::size_t>(largest_n) * 4 + 64;
    for (int i = 0; i < 12; ++i) memory_.emplace_back(bytes);
  }

  void check(const Case& c) {
    SumRows s;
    place(c, s);
    const auto size = static_cast<std::size_t>(size_of(c.out));
    auto* out = static_cast<std::uint8_t*>(s.out);
    memory_[11].fill(0xa5);
    sum_rows(s);
    stream_fence();
    ASSERT_EQ(memory_[11].touched_outside(out, static_cast<std::size_t>(c.n) * size, 0xa5), 0u) << text(c);
    for (std::int64_t i = 0; i < c.n; ++i) {
      std::uint32_t got = 0;
      std::memcpy(&got, out + static_cast<std::size_t>(i) * size, size);
      ASSERT_EQ(got, rounded(c.out, reference(s, i))) << text(c) << ", element " << i;
    }
  }

 private:
  std::uint8_t* row(const Case& c, std::size_t index, DataType type) {
    const auto bytes = static_cast<std::size_t>(c.n * size_of(type));
    auto* at = c.at_end ? memory_[index].last(bytes) : memory_[index].first() + c.shift;
    fill_row(random_, at, type, c.n, c.mix);
    return at;
  }

  void place(const Case& c, SumRows& s) {
    rows_.clear();
    weights_.clear();
    for (int r = 0; r < c.count; ++r) {
      rows_.push_back(row(c, static_cast<std::size_t>(r), c.in));
      const float special[] = {0.0f, -0.5f, std::numeric_limits<float>::infinity(), 1e-38f, 0.3f};
      weights_.push_back(c.mix == Mix::any_bits ? special[random_() % 5] : static_cast<float>(random_() % 1000) * 1e-3f);
    }
    const auto bytes = static_cast<std::size_t>(c.n * size_of(c.out));
    // 16-byte aligned, as promised; at the end only if the row's length allows it.
    s.out = c.at_end && bytes % 16 == 0 ? memory_[11].last(bytes) : memory_[11].first() + c.shift / 16 * 16;
    s.out_type = c.out;
    s.in_type = c.in;
    s.rows = rows_.data();
    s.weights = c.weighted ? weights_.data() : nullptr;
    s.count = c.count;
    s.n = c.n;
    s.stream = c.stream;
    for (int b = 0; b < c.biases; ++b) s.bias[b] = row(c, static_cast<std::size_t>(9 + b), c.out);
  }

  static float reference(const SumRows& s, std::int64_t i) {
    float acc = 0.0f;
    if (s.bias[0]) acc = element(s.out_type, s.bias[0], i);
    if (s.bias[1]) acc = numbers::sum(acc, element(s.out_type, s.bias[1], i));
    for (int r = 0; r < s.count; ++r) {
      const float x = element(s.in_type, s.rows[r], i);
      acc = numbers::sum(acc, s.weights ? numbers::product(s.weights[r], x) : x);
    }
    return acc;
  }

  std::deque<Guarded> memory_;
  std::vector<const void*> rows_;
  std::vector<float> weights_;
  std::mt19937 random_{5};
};

bool may_stream(const Case& c) { return c.n * size_of(c.out) % 16 == 0; }

void check_types(SumTest& test, Case c) {
  for (const DataType in : float_types) {
    for (const DataType out : float_types) {
      for (const bool weighted : {false, true}) {
        c.in = in;
        c.out = out;
        c.weighted = weighted;
        c.stream = false;
        test.check(c);
        c.stream = true;
        if (may_stream(c)) test.check(c);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(V3, sums_have_the_defined_bits_for_every_length_and_type) {
  SumTest test(300);
  on_every_target([&] {
    for (std::int64_t n = 1; n <= 300 && !testing::Test::HasFatalFailure(); ++n) {
      check_types(test, {.n = n, .count = 1 + static_cast<int>(n % 4), .mix = n % 2 ? Mix::any_bits : Mix::ordinary});
    }
  });
}

TEST(V3, sums_have_the_defined_bits_at_typical_sizes_and_counts) {
  SumTest test(7168);
  on_every_target([&] {
    for (const std::int64_t n : {2880, 3584, 4096, 5120, 6144, 7168}) {
      for (const int count : {0, 1, 2, 8}) {
        for (const bool weighted : {false, true}) {
          test.check({.n = n, .count = count, .weighted = weighted, .stream = true, .mix = Mix::ordinary});
          test.check({.out = DataType::fp32, .n = n, .count = count, .weighted = weighted, .mix = Mix::ordinary});
        }
      }
    }
  });
}

TEST(V3, sums_read_rows_and_write_results_at_any_legal_alignment) {
  SumTest test(200);
  on_every_target([&] {
    for (std::size_t shift = 0; shift < 64; ++shift) {
      for (const std::int64_t n : {8, 16, 24, 40, 88, 133, 200}) {
        check_types(test, {.n = n, .count = 2, .shift = shift, .at_end = false, .mix = Mix::ordinary});
      }
    }
  });
}

TEST(V3, sums_start_from_the_biases) {
  SumTest test(300);
  on_every_target([&] {
    for (const std::int64_t n : {1, 7, 8, 64, 96, 131, 300}) {
      for (const int biases : {1, 2}) {
        for (const Mix mix : {Mix::any_bits, Mix::ordinary}) {
          check_types(test, {.n = n, .count = static_cast<int>(n % 3), .biases = biases, .mix = mix});
        }
      }
    }
  });
}

TEST(V3, a_sum_of_minus_zeros_is_plus_zero) {
  on_every_target([] {
    alignas(16) std::uint16_t out[64], row[64];
    for (auto& x : row) x = 0x8000;
    const void* rows[] = {row, row};
    sum_rows({.out = out, .rows = rows, .count = 2, .n = 64});
    for (const auto x : out) ASSERT_EQ(x, 0);
  });
}

TEST(V4, every_value_of_a_small_float_is_read_and_rounded_alike_on_every_target) {
  constexpr std::int64_t all = 65536;
  std::vector<std::uint16_t> row(all);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all);
  std::vector<std::uint16_t> narrow(all);
  on_every_target([&] {
    for (const DataType type : {DataType::bf16, DataType::fp16}) {
      const void* rows[] = {row.data()};
      sum_rows({.out = wide.data(), .out_type = DataType::fp32, .rows = rows, .in_type = type, .count = 1, .n = all});
      sum_rows({.out = narrow.data(), .out_type = type, .rows = rows, .in_type = type, .count = 1, .n = all});
      for (std::int64_t i = 0; i < all; ++i) {
        const float x = numbers::sum(0.0f, element(type, row.data(), i));
        ASSERT_EQ(numbers::bits_of(wide[static_cast<std::size_t>(i)]), rounded(DataType::fp32, x)) << i;
        ASSERT_EQ(narrow[static_cast<std::size_t>(i)], rounded(type, x)) << i;
      }
    }
  });
}

TEST(V4, random_floats_round_alike_on_every_target) {
  constexpr std::int64_t n = 1 << 20;
  std::vector<float> row(n);
  std::vector<std::uint16_t> out(n);
  std::mt19937 random(3);
  fill_row(random, row.data(), DataType::fp32, n, Mix::any_bits);
  for (std::size_t i = 0; i < n; i += 2) {  // every other one where fp16 has its subnormals and its end
    const std::uint32_t bits = 0x3280'0000u + static_cast<std::uint32_t>(random()) % 0x1580'0000u;
    row[i] = numbers::float_of_bits(bits);
  }
  const void* rows[] = {row.data()};
  on_every_target([&] {
    for (const DataType type : {DataType::bf16, DataType::fp16}) {
      sum_rows({.out = out.data(), .out_type = type, .rows = rows, .in_type = DataType::fp32, .count = 1, .n = n});
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(out[i], rounded(type, numbers::sum(0.0f, row[i]))) << std::hexfloat << row[i];
      }
    }
  });
}

TEST(V6, a_masked_row_reaches_nobody_and_a_nan_stays_in_its_row) {
  on_every_target([] {
    alignas(16) std::uint16_t out[40], good[40], bad[40];
    for (auto& x : good) x = 0x3f80;
    for (auto& x : bad) x = 0xffff;
    const void* rows[] = {good, bad};
    sum_rows({.out = out, .rows = rows, .count = 1, .n = 40});
    for (const auto x : out) ASSERT_EQ(x, 0x3f80);
    sum_rows({.out = out, .rows = rows, .count = 2, .n = 40});
    for (const auto x : out) ASSERT_EQ(x, 0x7fc0);
  });
}

void check_copy(const std::uint8_t* from, std::uint8_t* to, std::size_t bytes, const Guarded& target) {
  for (const bool stream : {false, true}) {
    if (stream && bytes % 16 != 0) continue;
    target.fill(0x5a);
    stream ? stream_row(to, from, bytes) : copy_row(to, from, bytes);
    stream_fence();
    ASSERT_TRUE(bytes == 0 || std::memcmp(to, from, bytes) == 0) << bytes << " bytes";
    ASSERT_EQ(target.touched_outside(to, bytes, 0x5a), 0u) << bytes << " bytes";
  }
}

TEST(V4, a_copied_row_keeps_its_bits_and_nothing_else_is_touched) {
  const Guarded source(65536 + 64), target(65536 + 64);
  std::mt19937 random(1);
  fill_row(random, source.first(), DataType::fp32, 16384, Mix::any_bits);
  on_every_target([&] {
    for (const std::size_t bytes : {0, 16, 32, 48, 64, 80, 112, 128, 144, 400, 4096, 5760, 7168, 14336, 14352, 65536}) {
      check_copy(source.last(bytes), target.last(bytes), bytes, target);
      for (std::size_t shift = 0; shift < 64; shift += 16) {
        check_copy(source.first() + shift / 3, target.first() + shift, bytes, target);
      }
    }
  });
}

TEST(Targets, are_listed_best_first_and_chosen_by_name) {
  ASSERT_GE(simd_target_count(), 1);
  const std::string best = simd_target_name(0);
  const std::string lowest = simd_target_name(simd_target_count() - 1);
  EXPECT_TRUE(lowest == "SCALAR" || lowest == "EMU128" || simd_target_count() == 1) << lowest;
  use_simd_target("scalar");
  EXPECT_EQ(simd_target(), lowest);
  EXPECT_THROW(use_simd_target("MMX"), sluice::ArgumentError);
  EXPECT_THROW(use_simd_target(nullptr), sluice::ArgumentError);
  EXPECT_EQ(simd_target(), lowest);
  std::string small = best;
  for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  EXPECT_EQ(find_simd_target(small.c_str()), best);
  EXPECT_EQ(find_simd_target("Scalar"), lowest);
  EXPECT_EQ(simd_target(), lowest) << "asking changes nothing";
  use_simd_target(small.c_str());
  EXPECT_EQ(simd_target(), best);
}

}  // namespace
