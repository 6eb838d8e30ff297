#include "cli/routing_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>

#include "cli/gate.h"
#include "cli/random.h"

namespace sluice::cli {
namespace {

constexpr std::uint64_t fixed_one = std::uint64_t{1} << 32;

// Skew of a real model's layer, fitted to published figures (load of the busiest expert over the mean,
// entropy of expert use, rows per rank with 8 ranks) of one recorded run each:
//
//   model     layer  E, K   expert max/mean  entropy, bits  rows per rank max/mean
//   OLMoE-1B-7B   0  64, 8             5.31          5.749                   1.171
//   Qwen1.5-MoE  12  60, 4             1.49          5.886                   1.132
//   Mixtral-8x7B 20   8, 2             1.78          2.929                   1.780
//
// The experts are cut into eight runs of equal length, as eight ranks own them; `eighths` is each run's
// share of the load (from the rows per rank: -ln(1 - rows / tokens), scaled; for Mixtral a run is one
// expert). Inside a run loads are log-normal with `spread`, chosen for the entropy, in seeded order; one
// expert of run `hot_run` has `hot` times the mean. Tokens are independent: how skew rises and falls
// along a prompt is not modelled.
struct Fit {
  int experts;
  int topk;
  double hot;  // 0: none
  int hot_run;
  double spread;
  std::array<double, 8> eighths;
};

constexpr Fit olmoe_fit{64, 8, 5.31, 0, 0.50, {1.178, 0.981, 0.945, 0.972, 0.796, 1.094, 0.938, 1.094}};
constexpr Fit qwen_fit{60, 4, 1.49, 2, 0.16, {1.173, 0.939, 0.995, 1.073, 1.096, 1.074, 1.172, 0.512}};
constexpr Fit mixtral_fit{8, 2, 0, 0, 0, {1.003, 0.948, 0.935, 0.536, 0.893, 0.873, 1.780, 1.031}};

const Fit* fit_of(RoutingModel::Kind kind) {
  switch (kind) {
    case RoutingModel::Kind::olmoe:
      return &olmoe_fit;
    case RoutingModel::Kind::qwen:
      return &qwen_fit;
    case RoutingModel::Kind::mixtral:
      return &mixtral_fit;
    default:
      return nullptr;
  }
}

void shuffle(std::vector<double>& values, std::size_t begin, std::size_t end, Random& random) {
  for (std::size_t i = end; i > begin + 1; --i) {
    std::swap(values[i - 1], values[begin + random.below(i - begin)]);
  }
}

// Normal quantile to about two digits, which is all that a fitted spread needs.
double quantile(double p) { return 4.91 * (std::pow(p, 0.14) - std::pow(1 - p, 0.14)); }

// Loads of one run of n experts that add up to `total`.
void fill_run(std::vector<double>& loads, std::size_t begin, std::size_t end, double total, double hot,
              double spread) {
  double sum = 0;
  const std::size_t cool = hot > 0 ? begin + 1 : begin;
  for (std::size_t e = cool; e < end; ++e) {
    const double p = (static_cast<double>(e - cool) + 0.5) / static_cast<double>(end - cool);
    loads[e] = std::exp(spread * quantile(p));
    sum += loads[e];
  }
  if (hot > 0) loads[begin] = cool < end ? std::min(hot, 0.6 * total) : total;
  const double rest = hot > 0 ? total - loads[begin] : total;
  for (std::size_t e = cool; e < end; ++e) loads[e] *= rest / sum;
}

std::vector<double> fitted(const Fit& fit, int experts, Random& random) {
  std::vector<double> loads(static_cast<std::size_t>(experts), 0.0);
  const auto n = static_cast<std::size_t>(experts);
  const std::size_t run = (n + 7) / 8;
  for (std::size_t r = 0; r * run < n; ++r) {
    const std::size_t begin = r * run;
    const std::size_t end = std::min(n, begin + run);
    const double total = fit.eighths[r] * static_cast<double>(experts) / 8;
    fill_run(loads, begin, end, total, static_cast<int>(r) == fit.hot_run ? fit.hot : 0, fit.spread);
    shuffle(loads, begin, end, random);
  }
  return loads;
}

// Distinct experts with the given probabilities: the experts are laid end to end in random order, each
// as long as its probability, and a comb with teeth at distance 1 is put on at random.
class Sampler {
 public:
  explicit Sampler(std::vector<std::uint64_t> lengths)
      : lengths_(std::move(lengths)), order_(lengths_.size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  void sample(Random& random, std::int32_t* ids, int topk) {
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
    std::uint64_t tooth = random.next() >> 32;
    std::uint64_t end = 0;
    int found = 0;
    for (const std::int32_t e : order_) {
      end += lengths_[e];
      if (end <= tooth) continue;
      ids[found++] = e;
      if (found == topk) return;
      tooth += fixed_one;
    }
  }

 private:
  std::vector<std::uint64_t> lengths_;
  std::vector<std::int32_t> order_;
};

// Positive, falling, adding up to 1.
void falling_weights(Random& random, float* weights, int topk) {
  double sum = 0;
  for (int j = 0; j < topk; ++j) {
    const double u = random.uniform();
    weights[j] = static_cast<float>(0.05 + u * u * u);
    sum += weights[j];
  }
  std::sort(weights, weights + topk, std::greater<>());
  for (int j = 0; j < topk; ++j) weights[j] = static_cast<float>(weights[j] / sum);
}

void generate_by_gate(Decisions& out, int experts, Random& random) {
  const GateShape shape = deepseek_gate(experts, out.topk);
  std::vector<float> logits(static_cast<std::size_t>(experts));
  for (std::int64_t t = 0; t < out.tokens(); ++t) {
    for (float& logit : logits) logit = static_cast<float>(random.normal());
    choose_experts(shape, logits.data(), out.ids.data() + t * out.topk, out.weights.data() + t * out.topk);
  }
}

struct ModelName {
  const char* name;
  RoutingModel::Kind kind;
  bool skewed = false;  // written with ":S" behind it
};
constexpr ModelName model_names[] = {{"uniform", RoutingModel::Kind::uniform},
                                     {"zipf", RoutingModel::Kind::zipf, true},
                                     {"lognormal", RoutingModel::Kind::lognormal, true},
                                     {"deepseek", RoutingModel::Kind::deepseek},
                                     {"olmoe", RoutingModel::Kind::olmoe},
                                     {"qwen", RoutingModel::Kind::qwen},
                                     {"mixtral", RoutingModel::Kind::mixtral}};

bool parse_skew(std::string_view text, double& skew) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), skew);
  return error == std::errc() && end == text.data() + text.size() && skew >= 0 && skew <= 100;
}

}  // namespace

std::vector<std::string> routing_model_names(const std::string& skew) {
  std::vector<std::string> names;
  for (const ModelName& model : model_names) {
    names.push_back(model.skewed ? fmt::format("{}:{}", model.name, skew) : model.name);
  }
  return names;
}

bool parse_routing_model(const std::string& text, RoutingModel& model) {
  for (const auto& [name, kind, skewed] : model_names) {
    if (!skewed && text == name) {
      model = {kind, 0};
      return true;
    }
    const std::string prefix = std::string(name) + ":";
    if (!skewed || !text.starts_with(prefix)) continue;
    model.kind = kind;
    return parse_skew(std::string_view(text).substr(prefix.size()), model.skew);
  }
  return false;
}

std::string wrong_skew(const std::string& text) {
  RoutingModel model;
  for (const ModelName& known : model_names) {
    if (known.skewed && text.starts_with(std::string(known.name) + ":") && !parse_routing_model(text, model))
      return fmt::format("the S of {}:S is a number from 0 to 100", known.name);
  }
  return "";
}

int natural_experts(const RoutingModel& model) {
  const Fit* fit = fit_of(model.kind);
  return fit != nullptr ? fit->experts : 256;
}

int natural_topk(const RoutingModel& model) {
  const Fit* fit = fit_of(model.kind);
  return fit != nullptr ? fit->topk : 8;
}

std::vector<double> popularity(const RoutingModel& model, int experts, std::uint64_t seed) {
  Random random(mix(seed, 0x706F70));
  if (const Fit* fit = fit_of(model.kind)) return fitted(*fit, experts, random);
  std::vector<double> loads(static_cast<std::size_t>(experts), 1.0);
  for (int e = 0; e < experts; ++e) {
    if (model.kind == RoutingModel::Kind::zipf) loads[e] = std::pow(e + 1.0, -model.skew);
    if (model.kind == RoutingModel::Kind::lognormal) loads[e] = std::exp(model.skew * random.normal());
  }
  shuffle(loads, 0, loads.size(), random);
  return loads;
}

std::vector<std::uint64_t> inclusion(const std::vector<double>& popularity, int topk) {
  const std::size_t n = popularity.size();
  std::vector<double> p(n, 0.0);
  std::vector<bool> full(n, false);
  // Whoever would be chosen more than once per token is chosen always; the others share what is left.
  for (bool again = true; again;) {
    again = false;
    double sum = 0;
    double left = topk;
    for (std::size_t e = 0; e < n; ++e) full[e] ? left -= 1 : sum += popularity[e];
    for (std::size_t e = 0; e < n; ++e) {
      p[e] = full[e] ? 1.0 : sum > 0 ? left * popularity[e] / sum : 0.0;
      if (!full[e] && p[e] >= 1.0) full[e] = again = true;
    }
  }
  std::vector<std::uint64_t> units(n);
  for (std::size_t e = 0; e < n; ++e)
    units[e] = std::min(fixed_one, static_cast<std::uint64_t>(p[e] * static_cast<double>(fixed_one)));
  // The sum must be exact, or a token would get too few experts.
  const std::uint64_t due = static_cast<std::uint64_t>(topk) * fixed_one;
  std::uint64_t sum = std::accumulate(units.begin(), units.end(), std::uint64_t{0});
  for (std::size_t e = 0; e < n && sum < due; ++e) {
    const std::uint64_t more = std::min(fixed_one - units[e], due - sum);
    units[e] += more;
    sum += more;
  }
  for (std::size_t e = 0; e < n && sum > due; ++e) {
    const std::uint64_t less = std::min(units[e], sum - due);
    units[e] -= less;
    sum -= less;
  }
  return units;
}

Decisions generate(const RoutingModel& model, int experts, int topk, std::int64_t tokens, std::uint64_t seed,
                   std::uint64_t stream) {
  Decisions out;
  out.topk = topk;
  out.ids.resize(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(topk));
  out.weights.resize(out.ids.size());
  Random random(mix(mix(seed, 0x746F6B), stream));
  if (model.kind == RoutingModel::Kind::deepseek) {
    generate_by_gate(out, experts, random);
    return out;
  }
  Sampler sampler(inclusion(popularity(model, experts, seed), topk));
  for (std::int64_t t = 0; t < tokens; ++t) {
    sampler.sample(random, out.ids.data() + t * topk, topk);
    falling_weights(random, out.weights.data() + t * topk, topk);
  }
  return out;
}

}  // namespace sluice::cli
