#include "cli/moe_layer.h"

#include <algorithm>
#include <cmath>

#include "cli/gate.h"
#include "cli/numbers.h"
#include "cli/random.h"

namespace sluice::cli {
namespace {

std::vector<float> normal_matrix(std::uint64_t seed, std::size_t rows, std::size_t columns) {
  Random random(seed);
  std::vector<float> values(rows * columns);
  const double scale = 1.0 / std::sqrt(static_cast<double>(rows));
  for (float& value : values) value = static_cast<float>(random.normal() * scale);
  return values;
}

std::vector<double> column_norms(const std::vector<float>& matrix, int columns) {
  std::vector<double> norms(static_cast<std::size_t>(columns), 0.0);
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    norms[i % norms.size()] += static_cast<double>(matrix[i]) * static_cast<double>(matrix[i]);
  }
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

// out[j] = sum over i of in[i] * matrix[i][j], added in the order of i. The inner loop runs over
// columns, so it vectorises without changing that order.
template <class T>
void multiply(const T* in, int rows, const float* matrix, int columns, T* out) {
  std::fill_n(out, columns, T(0));
  for (int i = 0; i < rows; ++i) {
    const T x = in[i];
    const float* line = matrix + static_cast<std::ptrdiff_t>(i) * columns;
    for (int j = 0; j < columns; ++j) out[j] += x * static_cast<T>(line[j]);
  }
}

}  // namespace

std::vector<std::uint16_t> make_tokens(const LayerShape& shape, std::int64_t first, std::int64_t count) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(count) * hidden);
  for (std::int64_t t = 0; t < count; ++t) {
    Random random(mix(mix(shape.seed, 0x746F6B656E), static_cast<std::uint64_t>(first + t)));
    for (std::size_t h = 0; h < hidden; ++h) {
      tokens[static_cast<std::size_t>(t) * hidden + h] = to_bf16(static_cast<float>(random.normal()));
    }
  }
  return tokens;
}

Router::Router(const LayerShape& shape)
    : shape_(shape),
      weights_(normal_matrix(mix(shape.seed, 0x726F75746572), static_cast<std::size_t>(shape.hidden),
                             static_cast<std::size_t>(shape.experts))) {}

Decisions Router::route(const std::vector<std::uint16_t>& tokens) const {
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  const GateShape gate = deepseek_gate(shape_.experts, shape_.topk);
  Decisions out;
  out.topk = shape_.topk;
  const std::size_t count = tokens.size() / hidden;
  out.ids.resize(count * static_cast<std::size_t>(shape_.topk));
  out.weights.resize(out.ids.size());
  std::vector<float> x(hidden);
  std::vector<float> logits(static_cast<std::size_t>(shape_.experts));
  for (std::size_t t = 0; t < count; ++t) {
    for (std::size_t h = 0; h < hidden; ++h) x[h] = from_bf16(tokens[t * hidden + h]);
    multiply(x.data(), shape_.hidden, weights_.data(), shape_.experts, logits.data());
    const std::size_t at = t * static_cast<std::size_t>(shape_.topk);
    choose_experts(gate, logits.data(), out.ids.data() + at, out.weights.data() + at);
  }
  return out;
}

Expert::Expert(const LayerShape& shape, int id) : hidden_(shape.hidden), inner_(shape.inner) {
  const std::uint64_t seed = mix(mix(shape.seed, 0x657870657274), static_cast<std::uint64_t>(id));
  const auto hidden = static_cast<std::size_t>(hidden_);
  const auto inner = static_cast<std::size_t>(inner_);
  gate_ = normal_matrix(mix(seed, 1), hidden, inner);
  up_ = normal_matrix(mix(seed, 2), hidden, inner);
  down_ = normal_matrix(mix(seed, 3), inner, hidden);
  gate_norm_ = column_norms(gate_, inner_);
  up_norm_ = column_norms(up_, inner_);
}

void Expert::forward(const std::uint16_t* in, std::uint16_t* out) const {
  std::vector<float> x(static_cast<std::size_t>(hidden_));
  std::vector<float> g(static_cast<std::size_t>(inner_));
  std::vector<float> u(g.size());
  for (int h = 0; h < hidden_; ++h) x[h] = from_bf16(in[h]);
  multiply(x.data(), hidden_, gate_.data(), inner_, g.data());
  multiply(x.data(), hidden_, up_.data(), inner_, u.data());
  for (int f = 0; f < inner_; ++f) g[f] = g[f] / (1.0F + std::exp(-g[f])) * u[f];
  multiply(g.data(), inner_, down_.data(), hidden_, x.data());
  for (int h = 0; h < hidden_; ++h) out[h] = to_bf16(x[h]);
}

void Expert::exact(const std::uint16_t* in, double* out, double* error) const {
  std::vector<double> x(static_cast<std::size_t>(hidden_));
  std::vector<double> g(static_cast<std::size_t>(inner_));
  std::vector<double> u(g.size());
  double length = 0;
  for (int h = 0; h < hidden_; ++h) {
    x[h] = static_cast<double>(from_bf16(in[h]));
    length += x[h] * x[h];
  }
  length = std::sqrt(length);
  multiply(x.data(), hidden_, gate_.data(), inner_, g.data());
  multiply(x.data(), hidden_, up_.data(), inner_, u.data());
  // Errors of the sums by Cauchy-Schwarz; silu's slope is below 1.1.
  const double unit = (hidden_ + 16) * 0x1p-24;
  for (int f = 0; f < inner_; ++f) {
    const double silu = g[f] / (1.0 + std::exp(-g[f]));
    const double moved =
        unit * length * (1.1 * gate_norm_[f] * std::fabs(u[f]) + std::fabs(silu) * up_norm_[f]);
    g[f] = silu * u[f];
    u[f] = moved + (inner_ + 16) * 0x1p-24 * std::fabs(g[f]);
  }
  multiply(g.data(), inner_, down_.data(), hidden_, out);
  std::fill_n(error, hidden_, 0.0);
  for (int f = 0; f < inner_; ++f) {
    const float* line = down_.data() + static_cast<std::ptrdiff_t>(f) * hidden_;
    for (int h = 0; h < hidden_; ++h) error[h] += u[f] * std::fabs(static_cast<double>(line[h]));
  }
}

}  // namespace sluice::cli
