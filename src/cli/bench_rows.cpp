#include "cli/bench_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cli/numbers.h"
#include "cli/random.h"

namespace sluice::cli {
namespace {

struct Pattern {
  std::uint64_t keep;
  std::uint64_t set;
};

// Which bits are free: the sign, the mantissa and the lowest bits of the exponent.
Pattern pattern_of(DataType type) {
  switch (type) {
    case DataType::bf16:
      return {0x81FF81FF81FF81FFu, 0x3E003E003E003E00u};
    case DataType::fp16:
      return {0x8FFF8FFF8FFF8FFFu, 0x3000300030003000u};
    case DataType::fp32:
      return {0x81FFFFFF81FFFFFFu, 0x3E0000003E000000u};
    default:
      return {0xBFBFBFBFBFBFBFBFu, 0};
  }
}

void add_packed(const BenchCase& bench, int rank, std::vector<Arrival>& out) {
  const auto owner = owners(bench.first_expert);
  std::int64_t position = 0;
  for (int s = 0; s < bench.ranks; ++s) {
    const Decisions& mine = bench.decisions[s];
    for (std::int64_t t = 0; t < mine.tokens(); ++t) {
      bool comes = false;
      for (int j = 0; j < mine.topk; ++j) {
        const std::int32_t id = mine.ids[static_cast<std::size_t>(t * mine.topk + j)];
        comes = comes || (id >= 0 && owner[id] == rank);
      }
      if (comes) out.push_back({position++, s, t, rank, 1.0F});
    }
  }
}

// Rows of one rank by local expert, each in the order (source, token).
std::vector<std::vector<Arrival>> by_expert(const BenchCase& bench, int rank) {
  const int first = bench.first_expert[rank];
  const int end = bench.first_expert[rank + 1];
  std::vector<std::vector<Arrival>> rows(static_cast<std::size_t>(end - first));
  for (int s = 0; s < bench.ranks; ++s) {
    const Decisions& mine = bench.decisions[s];
    for (std::size_t i = 0; i < mine.ids.size(); ++i) {
      const std::int32_t id = mine.ids[i];
      if (id >= first && id < end)
        rows[id - first].push_back({0, s, static_cast<std::int64_t>(i) / mine.topk, id, mine.weights[i]});
    }
  }
  return rows;
}

struct ExpectedRow {
  std::vector<std::uint8_t> bytes;
  std::vector<float> scales;
};

// The row as it must arrive: as it is, or quantised as promise V4 says.
void expect_row(const BenchCase& bench, int source, std::int64_t token, std::vector<std::uint8_t>& raw,
                ExpectedRow& out) {
  const std::int64_t hidden = bench.flags.shape.hidden;
  const DataType type = bench.flags.shape.dtype;
  fill_row(raw.data(), type, hidden, sent_key(bench, source, token));
  if (!bench.flags.quantise) {
    out.bytes = raw;
    if (bench.sends_scales()) {
      for (std::size_t g = 0; g < out.scales.size(); ++g)
        out.scales[g] = sent_scale(token, static_cast<std::int64_t>(g));
    }
    return;
  }
  for (std::int64_t begin = 0; begin < hidden; begin += 128) {
    const std::int64_t end = std::min(hidden, begin + 128);
    float a = 1e-4F;
    for (std::int64_t h = begin; h < end; ++h) a = std::max(a, std::fabs(element(raw.data(), type, h)));
    const float factor = 448.0F / a;
    for (std::int64_t h = begin; h < end; ++h) out.bytes[h] = to_e4m3(element(raw.data(), type, h) * factor);
    out.scales[begin / 128] = a / 448.0F;
  }
}

std::string compare_ids(const BenchCase& bench, int rank, const Arrival& row, const DispatchResult& result) {
  const Decisions& sent = bench.decisions[row.source];
  const auto at = static_cast<std::size_t>(row.token * sent.topk);
  const int first = bench.first_expert[rank];
  for (int j = 0; j < sent.topk; ++j) {
    const std::int32_t id = sent.ids[at + j];
    const bool here = id >= first && id < bench.first_expert[rank + 1];
    const auto slot = static_cast<std::size_t>(row.position * sent.topk + j);
    if (result.local_ids.as<std::int32_t>()[slot] != (here ? id - first : -1)) return "its local ids";
    if (result.weights.as<float>()[slot] != (here ? sent.weights[at + j] : 0.0F)) return "its weights";
  }
  return "";
}

std::string compare_row(const BenchCase& bench, int rank, const Arrival& row, const ExpectedRow& expected,
                        const DispatchResult& result) {
  const auto bytes = static_cast<std::int64_t>(expected.bytes.size());
  if (std::memcmp(result.rows.as<std::uint8_t>() + row.position * bytes, expected.bytes.data(),
                  expected.bytes.size()) != 0)
    return "its values";
  if (!expected.scales.empty()) {
    const auto groups = static_cast<std::int64_t>(expected.scales.size());
    const float* scales = result.scales.as<float>() + row.position * groups;
    if (std::memcmp(scales, expected.scales.data(), expected.scales.size() * sizeof(float)) != 0)
      return "its scales";
  }
  if (bench.flags.shape.layout == Layout::packed) return compare_ids(bench, rank, row, result);
  return result.weights.as<float>()[row.position] == row.weight ? "" : "its weight";
}

std::string compare_counts(const BenchCase& bench, int rank, std::size_t rows, const DispatchResult& result) {
  std::vector<std::int64_t> sums(
      static_cast<std::size_t>(bench.first_expert[rank + 1] - bench.first_expert[rank]), 0);
  for (const auto& mine : bench.decisions) {
    const auto all = rows_per_expert(mine, bench.experts);
    for (std::size_t e = 0; e < sums.size(); ++e)
      sums[e] += all[static_cast<std::size_t>(bench.first_expert[rank]) + e];
  }
  for (std::size_t e = 0; e < sums.size(); ++e) {
    if (result.counts.as<std::int32_t>()[e] != sums[e]) {
      return fmt::format("expert {}: {} rows counted, {} expected",
                         bench.first_expert[rank] + static_cast<int>(e), result.counts.as<std::int32_t>()[e],
                         sums[e]);
    }
  }
  const std::int64_t counted = result.num_rows.as<std::int64_t>()[0];
  const bool gaps = bench.flags.shape.layout == Layout::grouped && bench.flags.shape.alignment > 1;
  if (!gaps && counted != static_cast<std::int64_t>(rows))
    return fmt::format("{} rows counted, {} expected", counted, rows);
  return "";
}

void add_scaled(std::vector<float>& acc, const void* row, DataType type, float weight, bool weighted) {
  for (std::size_t h = 0; h < acc.size(); ++h) {
    const float x = element(row, type, static_cast<std::int64_t>(h));
    acc[h] = acc[h] + (weighted ? weight * x : x);
  }
}

// The token's row as promise V3 defines it, in plain scalar code.
class HomeRow {
 public:
  HomeRow(const BenchCase& bench, int rank)
      : bench_(bench),
        rank_(rank),
        owner_(owners(bench.first_expert)),
        hidden_(bench.flags.shape.hidden),
        type_(bench.combine_type()),
        row_(static_cast<std::size_t>(hidden_ * size_of(type_))),
        sum_(static_cast<std::size_t>(hidden_)),
        partial_(sum_.size()) {}

  const std::vector<std::uint8_t>& expect(std::int64_t token) {
    std::fill(sum_.begin(), sum_.end(), 0.0F);
    auto choices = choices_of(token);
    for (std::size_t i = 0; i < choices.size();) {
      const int r = owner_[choices[i].first];
      std::size_t end = i;
      while (end < choices.size() && owner_[choices[end].first] == r) ++end;
      add_rank(token, r, choices, i, end);
      i = end;
    }
    for (std::int64_t h = 0; h < hidden_; ++h) set_element(row_.data(), type_, h, sum_[h]);
    return row_;
  }

 private:
  using Choices = std::vector<std::pair<std::int32_t, float>>;

  Choices choices_of(std::int64_t token) const {
    const Decisions& mine = bench_.decisions[rank_];
    Choices choices;
    for (int j = 0; j < mine.topk; ++j) {
      const auto at = static_cast<std::size_t>(token * mine.topk + j);
      if (mine.ids[at] >= 0) choices.emplace_back(mine.ids[at], mine.weights[at]);
    }
    std::sort(choices.begin(), choices.end());
    return choices;
  }

  void add_rank(std::int64_t token, int r, const Choices& choices, std::size_t begin, std::size_t end) {
    if (bench_.flags.shape.layout == Layout::packed) {
      fill_row(row_.data(), type_, hidden_, home_key(bench_, rank_, token, r));
      return add_scaled(sum_, row_.data(), type_, 1.0F, false);
    }
    std::fill(partial_.begin(), partial_.end(), 0.0F);
    for (std::size_t i = begin; i < end; ++i) {
      fill_row(row_.data(), type_, hidden_, home_key(bench_, rank_, token, choices[i].first));
      add_scaled(partial_, row_.data(), type_, choices[i].second, true);
    }
    for (std::int64_t h = 0; h < hidden_; ++h) set_element(row_.data(), type_, h, partial_[h]);
    add_scaled(sum_, row_.data(), type_, 1.0F, false);
  }

  const BenchCase& bench_;
  int rank_;
  std::vector<int> owner_;
  std::int64_t hidden_;
  DataType type_;
  std::vector<std::uint8_t> row_;
  std::vector<float> sum_;
  std::vector<float> partial_;
};

}  // namespace

void fill_row(void* row, DataType type, std::int64_t elements, std::uint64_t key) {
  const Pattern pattern = pattern_of(type);
  const auto words = static_cast<std::size_t>(elements * size_of(type)) / 8;
  auto* out = static_cast<std::uint8_t*>(row);
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = (mix(key + i) & pattern.keep) | pattern.set;
    std::memcpy(out + i * 8, &word, 8);
  }
}

std::uint64_t sent_key(const BenchCase& bench, int source, std::int64_t token) {
  return mix(mix(bench.flags.common.seed, static_cast<std::uint64_t>(source)),
             static_cast<std::uint64_t>(token));
}

std::uint64_t home_key(const BenchCase& bench, int source, std::int64_t token, int place) {
  return mix(~sent_key(bench, source, token), static_cast<std::uint64_t>(place));
}

std::vector<Arrival> arrivals(const BenchCase& bench, int rank, std::int64_t capacity) {
  std::vector<Arrival> out;
  if (bench.flags.shape.layout == Layout::packed) {
    add_packed(bench, rank, out);
    return out;
  }
  const std::int64_t alignment = bench.flags.shape.alignment;
  std::int64_t start = 0;
  for (auto& rows : by_expert(bench, rank)) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].position = start + static_cast<std::int64_t>(i);
      out.push_back(rows[i]);
    }
    const auto count = static_cast<std::int64_t>(rows.size());
    start += bench.flags.shape.layout == Layout::padded ? capacity
                                                        : (count + alignment - 1) / alignment * alignment;
  }
  return out;
}

std::string check_dispatch(const BenchCase& bench, int rank, const DispatchResult& result) {
  const auto rows = arrivals(bench, rank, result.rows.shape[1]);
  const std::string wrong_counts = compare_counts(bench, rank, rows.size(), result);
  if (!wrong_counts.empty()) return wrong_counts;
  const std::int64_t hidden = bench.flags.shape.hidden;
  std::vector<std::uint8_t> raw(static_cast<std::size_t>(hidden * size_of(bench.flags.shape.dtype)));
  ExpectedRow expected;
  expected.bytes.resize(bench.flags.quantise ? static_cast<std::size_t>(hidden) : raw.size());
  if (bench.flags.quantise || bench.sends_scales())
    expected.scales.resize(static_cast<std::size_t>(bench.scale_groups()));
  int source = -1;
  std::int64_t token = -1;
  for (const Arrival& row : rows) {
    if (row.source != source || row.token != token) expect_row(bench, row.source, row.token, raw, expected);
    source = row.source;
    token = row.token;
    const std::string wrong = compare_row(bench, rank, row, expected, result);
    if (!wrong.empty())
      return fmt::format("row {} (token {} of rank {}): {} differ", row.position, row.token, row.source,
                         wrong);
  }
  return "";
}

std::string check_combine(const BenchCase& bench, int rank, const CombineResult& result) {
  HomeRow oracle(bench, rank);
  const std::uint8_t* got = result.rows.as<std::uint8_t>();
  for (std::int64_t t = 0; t < bench.decisions[rank].tokens(); ++t) {
    const auto& row = oracle.expect(t);
    if (std::memcmp(got + t * static_cast<std::int64_t>(row.size()), row.data(), row.size()) != 0)
      return fmt::format("token {}: the sum differs", t);
  }
  return "";
}

void fill_home_rows(const BenchCase& bench, const std::vector<Arrival>& rows, const TensorView& view) {
  const std::int64_t hidden = bench.flags.shape.hidden;
  const std::int64_t bytes = hidden * size_of(bench.combine_type());
  for (const Arrival& row : rows) {
    fill_row(view.as<std::uint8_t>() + row.position * bytes, bench.combine_type(), hidden,
             home_key(bench, row.source, row.token, row.place));
  }
}

}  // namespace sluice::cli
