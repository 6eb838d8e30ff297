// The combine side of the oracle: twice over the same rows, once in FP64 and once in scalar FP32 in the
// order that V3 fixes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "oracle.h"

namespace conformance {
namespace {

std::uint64_t key_of(const CombineCall& call, int rank, const Arrival& a, std::uint64_t what) {
  std::uint64_t key = mix(call.seed * 16 + what);
  key = mix(key ^ static_cast<std::uint64_t>(rank));
  key = mix(key ^ static_cast<std::uint64_t>(a.source));
  key = mix(key ^ static_cast<std::uint64_t>(a.token));
  return mix(key ^ static_cast<std::uint64_t>(a.local_expert + 1));
}

float unit_float(std::uint64_t key) {
  return static_cast<float>(static_cast<double>(key >> 40) * 0x1p-24 + 0.03);
}

float rounded(DataType type, float x) {
  std::byte bits[4];
  from_float(type, x, bits);
  return to_float(type, bits);
}

// What one token's sum is made of.
struct Part {
  int rank;
  Arrival arrival;
};

// One token at a time, all elements.
class Token {
 public:
  Token(const CombineCall& call, int home, std::int64_t token, bool local_sums)
      : call_(call),
        n_(call.hidden),
        size_(sluice::size_of(call.type)),
        local_sums_(local_sums),
        sum_(index(n_), 0.0f),
        exact_(index(n_), 0.0),
        weight_sum_(index(n_), 0.0),
        partial_sizes_(index(n_), 0.0) {
    for (int b = 0; b < call.biases; ++b) {
      Bytes row(index(n_ * size_));
      bias_row(call, home, token, b, row.data());
      for (std::int64_t i = 0; i < n_; ++i) {
        const float x = to_float(call.type, row.data() + i * size_);
        sum_[index(i)] = b == 0 ? x : sum_[index(i)] + x;
        note(i, static_cast<double>(x));
      }
      ++rows_;
    }
  }

  // The rows of one rank, in ascending expert.
  void add_rank(const std::vector<Part>& parts) {
    std::vector<float> local(index(n_), 0.0f);
    std::vector<double> exact_local(index(n_), 0.0);
    std::vector<float>& target = local_sums_ ? local : sum_;
    Bytes row(index(n_ * size_));
    for (const Part& part : parts) {
      combine_row(call_, part.rank, part.arrival, row.data());
      const float w = combine_weight(call_, part.rank, part.arrival);
      for (std::int64_t i = 0; i < n_; ++i) {
        const float x = to_float(call_.type, row.data() + i * size_);
        const float p = call_.weights ? w * x : x;
        target[index(i)] = target[index(i)] + p;
        const double exact =
            call_.weights ? static_cast<double>(w) * static_cast<double>(x) : static_cast<double>(x);
        exact_local[index(i)] += exact;
        note(i, exact);
      }
      ++rows_;
    }
    if (!local_sums_) return;
    for (std::int64_t i = 0; i < n_; ++i) {
      sum_[index(i)] += call_.single_rounding ? local[index(i)] : rounded(call_.type, local[index(i)]);
      if (!call_.single_rounding) partial_sizes_[index(i)] += std::fabs(exact_local[index(i)]);
    }
  }

  void finish(Combined& out, std::int64_t token) const {
    const double u = unit_roundoff(call_.type);
    for (std::int64_t i = 0; i < n_; ++i) {
      from_float(call_.type, sum_[index(i)], out.rows.data() + (token * n_ + i) * size_);
      const double tolerance = u * std::fabs(exact_[index(i)]) +
                               (rows_ + 2) * 0x1p-24 * weight_sum_[index(i)] + u * partial_sizes_[index(i)] +
                               0.5 * smallest_subnormal(call_.type);
      out.exact[index(token * n_ + i)] = exact_[index(i)];
      out.tolerance[index(token * n_ + i)] = tolerance;
    }
  }

 private:
  void note(std::int64_t i, double x) {
    exact_[index(i)] += x;
    weight_sum_[index(i)] += std::fabs(x);
  }

  const CombineCall& call_;
  std::int64_t n_, size_;
  bool local_sums_;
  int rows_ = 0;
  std::vector<float> sum_;
  std::vector<double> exact_, weight_sum_, partial_sizes_;
};

void home_values(const Problem& p, const CombineCall& call, int home,
                 const std::vector<std::vector<Part>>& parts, std::vector<float>& out) {
  const int topk = p.call.topk;
  for (std::int64_t t = 0; t < p.inputs[index(home)].tokens; ++t)
    for (int k = 0; k < topk; ++k) {
      const std::int64_t expert = p.inputs[index(home)].ids[index(t * topk + k)];
      const int owner = p.owner(expert);
      if (owner < 0) continue;
      for (const Part& part : parts[index(t)]) {
        const bool mine = part.rank == owner && (part.arrival.local_expert < 0 ||
                                                 part.arrival.local_expert == expert - p.first[index(owner)]);
        if (mine)
          out[index(t * topk + k)] =
              combine_value(call, part.rank, part.arrival, part.arrival.local_expert < 0 ? k : 0);
      }
    }
}

}  // namespace

void combine_row(const CombineCall& call, int rank, const Arrival& a, void* out) {
  fill_row(key_of(call, rank, a, 1), call.type, call.hidden, call.fill, out);
}
float combine_weight(const CombineCall& call, int rank, const Arrival& a) {
  return unit_float(key_of(call, rank, a, 2));
}
float combine_value(const CombineCall& call, int rank, const Arrival& a, int k) {
  return unit_float(mix(key_of(call, rank, a, 3) + static_cast<std::uint64_t>(k)));
}
void bias_row(const CombineCall& call, int rank, std::int64_t token, int which, void* out) {
  fill_row(key_of(call, rank, Arrival{which, token, -1, 0, false}, 4), call.type, call.hidden, call.fill,
           out);
}

Combined expected_combine(const Problem& p, const std::vector<Arrivals>& all, const CombineCall& call,
                          int home) {
  const std::int64_t tokens = p.inputs[index(home)].tokens;
  std::vector<std::vector<Part>> parts(index(tokens));  // of each token, by rank, then expert
  for (int r = 0; r < p.ranks; ++r)
    for (const Arrival& a : all[index(r)].list)
      if (a.source == home && !a.dropped) parts[index(a.token)].push_back({r, a});
  Combined out;
  out.rows.resize(index(tokens * call.hidden * sluice::size_of(call.type)));
  out.exact.resize(index(tokens * call.hidden));
  out.tolerance.resize(index(tokens * call.hidden));
  for (std::int64_t t = 0; t < tokens; ++t) {
    Token token(call, home, t, p.call.layout != Layout::packed);
    for (int r = 0; r < p.ranks; ++r) {
      std::vector<Part> here;
      for (const Part& part : parts[index(t)])
        if (part.rank == r) here.push_back(part);
      if (!here.empty()) token.add_rank(here);
    }
    token.finish(out, t);
  }
  if (call.values) {
    out.values.assign(index(tokens * p.call.topk), 0.0f);
    home_values(p, call, home, parts, out.values);
  }
  return out;
}

Findings compare(const Combined& expected, const CombineCall& call, const Bytes& rows,
                 const std::vector<float>& values) {
  Findings out;
  if (rows.size() != expected.rows.size())
    return {"combine gave " + std::to_string(rows.size()) + " bytes, should be " +
            std::to_string(expected.rows.size())};
  const std::int64_t size = sluice::size_of(call.type);
  for (std::size_t i = 0; i < expected.exact.size() && out.size() < 5; ++i) {
    const std::byte* bits = rows.data() + i * index(size);
    const float got = to_float(call.type, bits);
    const float want = to_float(call.type, expected.rows.data() + i * index(size));
    std::ostringstream text;
    text << "token " << static_cast<std::int64_t>(i) / call.hidden << " element "
         << static_cast<std::int64_t>(i) % call.hidden << ": ";
    if (std::memcmp(bits, expected.rows.data() + i * index(size), index(size)) != 0) {
      text << "got " << got << ", the scalar sum gives " << want << " (or the same with other bits)";
      out.push_back(text.str());
    } else if (call.fill == Fill::tame && std::isfinite(got) &&
               std::fabs(static_cast<double>(got) - expected.exact[i]) > expected.tolerance[i]) {
      text << "got " << got << ", exact " << expected.exact[i] << ", bound " << expected.tolerance[i];
      out.push_back(text.str());
    }
  }
  if (values.size() != expected.values.size())
    out.push_back("values: " + std::to_string(values.size()) + " entries, should be " +
                  std::to_string(expected.values.size()));
  for (std::size_t i = 0; i < std::min(values.size(), expected.values.size()) && out.size() < 5; ++i)
    if (!same_bits(values[i], expected.values[i]))
      out.push_back("value " + std::to_string(i) + " is " + std::to_string(values[i]) + ", should be " +
                    std::to_string(expected.values[i]));
  return out;
}

}  // namespace conformance
