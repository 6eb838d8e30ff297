#include "oracle.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace conformance {
namespace {

bool chose(const Problem& p, const Input& in, std::int64_t token, std::int64_t expert) {
  for (int k = 0; k < p.call.topk; ++k)
    if (in.ids[index(token * p.call.topk + k)] == expert) return true;
  return false;
}

bool goes_to(const Problem& p, const Input& in, std::int64_t token, int rank) {
  if (p.call.mask) return in.mask[index(token * p.ranks + rank)] != 0;
  for (int k = 0; k < p.call.topk; ++k)
    if (p.owner(in.ids[index(token * p.call.topk + k)]) == rank) return true;
  return false;
}

void arrive_packed(const Problem& p, int rank, Arrivals& out) {
  for (int s = 0; s < p.ranks; ++s) {
    const Input& in = p.inputs[index(s)];
    for (std::int64_t t = 0; t < in.tokens; ++t) {
      if (!goes_to(p, in, t, rank)) continue;
      Arrival a{s, t, -1, out.end++, false};
      a.dropped = p.call.on_overflow == OnOverflow::drop && p.call.capacity > 0 && a.row >= p.call.capacity;
      out.list.push_back(a);
      for (int e = 0; e < p.local_experts(rank) && !p.call.mask; ++e) {
        const bool counts = chose(p, in, t, p.first[index(rank)] + e);
        out.chosen[index(e)] += counts;
        out.per_expert[index(e)] += counts && !a.dropped;
      }
    }
  }
}

void arrive_by_expert(const Problem& p, int rank, Arrivals& out) {
  for (int e = 0; e < p.local_experts(rank); ++e) {
    std::int64_t row = p.call.layout == Layout::grouped ? out.end : 0;
    for (int s = 0; s < p.ranks; ++s) {
      const Input& in = p.inputs[index(s)];
      for (std::int64_t t = 0; t < in.tokens; ++t) {
        if (!chose(p, in, t, p.first[index(rank)] + e)) continue;
        Arrival a{s, t, e, row++, false};
        a.dropped = p.call.on_overflow == OnOverflow::drop && p.call.capacity > 0 && a.row >= p.call.capacity;
        out.list.push_back(a);
        if (!a.dropped) ++out.per_expert[index(e)];
      }
    }
    if (p.call.layout == Layout::grouped)
      out.end = (row + p.call.alignment - 1) / p.call.alignment * p.call.alignment;
    else
      out.end += row;
  }
}

}  // namespace

Arrivals arrivals_at(const Problem& p, int rank) {
  Arrivals out;
  out.per_expert.assign(index(p.local_experts(rank)), 0);
  out.chosen = out.per_expert;
  out.per_source.assign(index(p.ranks), 0);
  if (p.call.layout == Layout::packed)
    arrive_packed(p, rank, out);
  else
    arrive_by_expert(p, rank, out);
  for (int s = 0; s < p.ranks; ++s)
    for (std::int64_t t = 0; t < p.inputs[index(s)].tokens; ++t)
      out.per_source[index(s)] += goes_to(p, p.inputs[index(s)], t, rank);
  for (const Arrival& a : out.list) out.dropped += a.dropped;
  return out;
}

std::vector<Arrivals> arrivals_of_all(const Problem& p) {
  std::vector<Arrivals> all;
  for (int r = 0; r < p.ranks; ++r) all.push_back(arrivals_at(p, r));
  return all;
}

namespace {

void place(const Problem& p, const Arrival& a, int rank, std::int64_t row, Image& image) {
  const Input& in = p.inputs[index(a.source)];
  image.filled[index(row)] = true;
  std::copy_n(in.sent_rows.begin() + a.token * image.row_bytes, image.row_bytes,
              image.data.begin() + row * image.row_bytes);
  std::copy_n(in.sent_scales.begin() + a.token * image.scale_bytes, image.scale_bytes,
              image.scales.begin() + row * image.scale_bytes);
  if (p.call.mask) return;
  float sum = 0;
  bool any = false;
  for (int k = 0; k < p.call.topk; ++k) {
    const std::int64_t expert = in.ids[index(a.token * p.call.topk + k)];
    const float weight = p.call.weights ? in.weights[index(a.token * p.call.topk + k)] : 0.0f;
    const bool here = p.owner(expert) == rank;
    if (p.call.layout == Layout::packed) {
      if (here)
        image.local_ids[index(row * p.call.topk + k)] =
            static_cast<std::int32_t>(expert - p.first[index(rank)]);
      if (here && p.call.weights) image.weights[index(row * p.call.topk + k)] = weight;
    } else if (here && expert - p.first[index(rank)] == a.local_expert) {
      sum = any ? sum + weight : weight;  // the same expert twice: added in slot order
      any = true;
    }
  }
  if (p.call.layout != Layout::packed && p.call.weights) image.weights[index(row)] = sum;
}

void count(const Problem& p, const Arrivals& arrivals, Image& image) {
  const std::int64_t room =
      p.call.on_overflow == OnOverflow::drop && p.call.capacity > 0 ? p.call.capacity : INT64_MAX;
  image.counts = image.aligned_counts = image.host_per_expert = arrivals.per_expert;
  if (p.call.layout == Layout::packed) image.host_per_expert = arrivals.chosen;  // known before the drop
  image.host_per_source = arrivals.per_source;
  image.dropped = arrivals.dropped;
  image.offsets.assign(1, 0);
  if (p.call.layout == Layout::packed) {
    for (std::int64_t n : arrivals.per_source)
      image.offsets.push_back(std::min(room, image.offsets.back() + n));
    image.num_rows = std::min(room, arrivals.end);
    if (p.call.mask) image.host_per_expert.clear();
  } else if (p.call.layout == Layout::grouped) {
    for (std::int64_t& n : image.aligned_counts) {
      n = (n + p.call.alignment - 1) / p.call.alignment * p.call.alignment;
      n = std::min(n, room - image.offsets.back());
      image.offsets.push_back(image.offsets.back() + n);
    }
    image.num_rows = image.offsets.back();
  } else {
    for (std::size_t e = 0; e < arrivals.per_expert.size(); ++e)
      image.offsets.push_back(image.offsets.back() + image.per_expert_rows);
    for (std::int64_t n : arrivals.per_expert) image.num_rows += n;
  }
  image.host_rows = image.num_rows;
}

}  // namespace

Image expected_image(const Problem& p, const Arrivals& arrivals, int rank, std::int64_t rows,
                     std::int64_t per_expert_rows) {
  Image image;
  image.rows = rows;
  image.per_expert_rows = per_expert_rows;
  image.row_bytes = p.sent_row_bytes();
  image.scale_bytes = p.sent_scale_bytes();
  image.data.resize(index(rows * image.row_bytes));
  image.scales.resize(index(rows * image.scale_bytes));
  image.filled.assign(index(rows), false);
  const bool packed = p.call.layout == Layout::packed;
  if (packed && !p.call.mask) image.local_ids.assign(index(rows * p.call.topk), -1);
  if (p.call.weights) image.weights.assign(index(rows * (packed ? p.call.topk : 1)), 0.0f);
  count(p, arrivals, image);
  for (const Arrival& a : arrivals.list) {
    const std::int64_t row = a.row + (p.call.layout == Layout::padded ? a.local_expert * per_expert_rows : 0);
    if (!a.dropped && row < rows) place(p, a, rank, row, image);
  }
  return image;
}

namespace {

template <class T>
void differ(Findings& out, const char* what, const std::vector<T>& expected, const std::vector<T>& got) {
  if (expected == got || out.size() > 4) return;
  std::ostringstream text;
  text << what << ": ";
  if (expected.size() != got.size()) {
    text << got.size() << " entries, should be " << expected.size();
  } else {
    std::size_t i = 0;
    while (expected[i] == got[i]) ++i;
    text << "entry " << i << " of " << got.size() << " is " << +got[i] << ", should be " << +expected[i];
  }
  out.push_back(text.str());
}

void differ(Findings& out, const char* what, std::int64_t expected, std::int64_t got) {
  differ(out, what, std::vector<std::int64_t>{expected}, std::vector<std::int64_t>{got});
}

bool finite_scales(const Problem& p, const std::byte* scales, std::int64_t bytes) {
  if (p.call.quantise == Quantise::e4m3_power_of_two) {
    for (std::int64_t i = 0; i < bytes; ++i)
      if (scales[i] == std::byte{0xff}) return false;
    return true;
  }
  const DataType type = p.call.quantise == Quantise::none ? p.call.scale_type : DataType::fp32;
  if (type != DataType::fp32) return true;
  for (std::int64_t i = 0; i + 4 <= bytes; i += 4) {
    const float scale = to_float(DataType::fp32, scales + i);
    if (!(scale - scale == 0.0f)) return false;
  }
  return true;
}

// Row by row: filled rows to the bit, others zero when asked.
void compare_rows(const Problem& p, const Image& expected, const Image& got, Findings& out) {
  for (std::int64_t n = 0; n < expected.rows && out.size() < 5; ++n) {
    const bool filled = expected.filled[index(n)];
    const std::byte* row = got.data.data() + n * expected.row_bytes;
    const std::byte* scales = got.scales.data() + n * expected.scale_bytes;
    const bool bits_matter = filled || p.call.zero_padding;  // the expected image is zero where nothing came
    if (bits_matter && expected.row_bytes > 0 &&
        std::memcmp(expected.data.data() + n * expected.row_bytes, row, index(expected.row_bytes)) != 0)
      out.push_back("row " + std::to_string(n) +
                    (filled ? " does not hold its token's bytes" : " is padding and not zero"));
    if (expected.scale_bytes == 0) continue;
    if (bits_matter && std::memcmp(expected.scales.data() + n * expected.scale_bytes, scales,
                                   index(expected.scale_bytes)) != 0)
      out.push_back("scales of row " + std::to_string(n) +
                    (filled ? " are not its token's" : " are padding and not zero"));
    if (!filled && !finite_scales(p, scales, expected.scale_bytes))
      out.push_back("scales of padding row " + std::to_string(n) + " are not finite");
  }
}

}  // namespace

Findings compare(const Problem& p, const Image& expected, const Image& got) {
  Findings out;
  differ(out, "num_rows", expected.num_rows, got.num_rows);
  differ(out, "dropped", expected.dropped, got.dropped);
  differ(out, "bytes per row", expected.row_bytes, got.row_bytes);
  differ(out, "scale bytes per row", expected.scale_bytes, got.scale_bytes);
  differ(out, "rows of the result", expected.rows, got.rows);
  if (!p.call.mask) {
    differ(out, "counts", expected.counts, got.counts);
    differ(out, "aligned_counts", expected.aligned_counts, got.aligned_counts);
  }
  differ(out, "offsets", expected.offsets, got.offsets);
  if (p.call.counts == Counts::exact) {
    differ(out, "host.rows", expected.host_rows, got.host_rows);
    differ(out, "host.per_expert", expected.host_per_expert, got.host_per_expert);
    differ(out, "host.per_source", expected.host_per_source, got.host_per_source);
  }
  differ(out, "local_ids", expected.local_ids, got.local_ids);
  differ(out, "weights", expected.weights, got.weights);
  if (out.empty() && got.data.size() == expected.data.size() && got.scales.size() == expected.scales.size())
    compare_rows(p, expected, got, out);
  return out;
}

}  // namespace conformance
