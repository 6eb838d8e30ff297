#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <sstream>

namespace conformance {
namespace {

// K experts, the likelier ones more often; -1 when there are not enough.
std::vector<std::int64_t> choose(Random& random, const std::vector<double>& popularity, int topk) {
  std::vector<std::int64_t> chosen;
  const auto experts = static_cast<std::int64_t>(popularity.size());
  for (int tries = 0; static_cast<int>(chosen.size()) < topk && tries < 40 * topk; ++tries) {
    std::int64_t e = random.below(experts);
    if (random.unit() > popularity[index(e)]) continue;
    if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
  }
  chosen.resize(index(topk), -1);
  return chosen;
}

std::vector<double> popularity_of(const Recipe& recipe, const Problem& problem, Random& random) {
  std::vector<double> popularity(index(recipe.experts), 1.0);
  if (recipe.routing == Routing::one_rank)
    for (int e = 0; e < recipe.experts; ++e)
      popularity[index(e)] = problem.owner(e) == problem.owner(0) ? 1.0 : 0.0;
  if (recipe.routing == Routing::log_normal)
    for (double& p : popularity) p = std::min(1.0, std::exp(1.5 * random.normal() - 2.0));
  return popularity;
}

std::int64_t no_expert(Random& random, const Recipe& recipe) {
  const std::int64_t wide[] = {recipe.experts,        recipe.experts + 1,    0x7fffffff, -2,
                               std::int64_t{1} << 31, std::int64_t{1} << 40, -5000000000};
  return wide[random.below(recipe.call.id_type == DataType::int64 ? 7 : 4)];
}

void make_ids(const Recipe& recipe, const Problem& problem, Random& random,
              const std::vector<std::int64_t>& common, Input& in) {
  const int topk = recipe.call.topk;
  const std::vector<double> popularity = popularity_of(recipe, problem, random);
  for (std::int64_t t = 0; t < in.tokens; ++t) {
    std::vector<std::int64_t> ids(index(topk), -1);
    const bool alike =
        recipe.routing == Routing::one_set || (recipe.routing == Routing::ten_random && t >= 10);
    if (alike)
      ids = common;
    else if (recipe.routing == Routing::one_expert)
      ids[0] = recipe.experts - 1;
    else if (recipe.routing != Routing::nowhere)
      ids = choose(random, popularity, topk);
    for (int k = 0; k < topk; ++k) {
      if (random.chance(recipe.missing)) ids[index(k)] = -1;
      if (k > 0 && random.chance(recipe.twice)) ids[index(k)] = ids[index(k) - 1];
      if (random.chance(recipe.outside)) ids[index(k)] = no_expert(random, recipe);
    }
    in.ids.insert(in.ids.end(), ids.begin(), ids.end());
  }
}

void make_mask(const Recipe& recipe, const Problem& problem, Random& random, Input& in) {
  in.mask.assign(index(in.tokens * problem.ranks), 0);
  for (auto& m : in.mask)
    m = random.chance(recipe.routing == Routing::nowhere ? 0.0 : 0.4)
            ? static_cast<std::uint8_t>(random.between(1, 255))
            : 0;
}

}  // namespace

int Problem::owner(std::int64_t expert) const {
  if (expert < 0 || expert >= experts) return -1;
  for (int r = 0; r < ranks; ++r)
    if (expert >= first[index(r)] && expert < first[index(r) + 1]) return r;
  return -1;
}

std::int64_t Problem::sent_scale_bytes() const {
  const std::int64_t groups = (call.hidden + 127) / 128;
  if (call.quantise == Quantise::e4m3) return 4 * groups;
  if (call.quantise == Quantise::e4m3_power_of_two) return (groups + 3) / 4 * 4;
  return scale_bytes();
}

void quantise(const void* row, DataType type, std::int64_t n, Quantise form, std::byte* out,
              std::byte* scales) {
  const auto* bytes = static_cast<const std::byte*>(row);
  const std::int64_t groups = (n + 127) / 128;
  if (form == Quantise::e4m3_power_of_two) std::memset(scales, 0, index((groups + 3) / 4 * 4));
  for (std::int64_t g = 0; g < groups; ++g) {
    std::vector<float> x;
    float largest = 1e-4f;
    for (std::int64_t i = g * 128; i < std::min(n, g * 128 + 128); ++i) {
      x.push_back(to_float(type, bytes + i * sluice::size_of(type)));
      if (std::isfinite(x.back())) largest = std::max(largest, std::fabs(x.back()));
    }
    float scale = largest / 448.0f;
    float inverse = 448.0f / largest;
    const bool power = form == Quantise::e4m3_power_of_two;
    if (power) {
      int exponent = 0;
      const float fraction =
          std::frexp(scale, &exponent);  // scale = fraction * 2^exponent, fraction in [0.5, 1)
      if (fraction == 0.5f) --exponent;  // a power of two is its own ceiling
      scale = std::ldexp(1.0f, exponent);
      scales[g] = static_cast<std::byte>(exponent + 127);
    } else {
      std::memcpy(scales + 4 * g, &scale, 4);
    }
    for (std::size_t i = 0; i < x.size(); ++i)
      from_float(DataType::e4m3, power ? x[i] / scale : x[i] * inverse,
                 out + g * 128 + static_cast<std::int64_t>(i));
  }
}

void refill(Problem& problem, std::uint64_t seed, Fill fill) {
  const Call& call = problem.call;
  for (int r = 0; r < problem.ranks; ++r) {
    Input& in = problem.inputs[index(r)];
    Random random(seed * 1000 + static_cast<std::uint64_t>(r));
    in.rows.resize(index(in.tokens * problem.row_bytes()));
    in.scales.resize(index(in.tokens * problem.scale_bytes()));
    for (std::int64_t t = 0; t < in.tokens; ++t) {
      fill_row(random.next(), call.dtype, call.hidden, fill, in.rows.data() + t * problem.row_bytes());
      fill_row(random.next(), DataType::uint8, problem.scale_bytes(), Fill::noise,
               in.scales.data() + t * problem.scale_bytes());
    }
    in.weights.clear();
    for (std::int64_t i = 0; call.weights && i < in.tokens * call.topk; ++i)
      in.weights.push_back(static_cast<float>(random.unit() + 0.01));
    in.sent_rows = in.rows;
    in.sent_scales = in.scales;
    if (call.quantise == Quantise::none) continue;
    in.sent_rows.resize(index(in.tokens * problem.sent_row_bytes()));
    in.sent_scales.resize(index(in.tokens * problem.sent_scale_bytes()));
    for (std::int64_t t = 0; t < in.tokens; ++t)
      quantise(in.rows.data() + t * problem.row_bytes(), call.dtype, call.hidden, call.quantise,
               in.sent_rows.data() + t * problem.sent_row_bytes(),
               in.sent_scales.data() + t * problem.sent_scale_bytes());
  }
}

Recipe small_recipe(int ranks, std::uint64_t seed) {
  Recipe recipe;
  recipe.seed = seed;
  recipe.ranks = ranks;
  recipe.experts = 4 * ranks;
  recipe.tokens = {12, 5, 17};
  return recipe;
}

Problem make_problem(const Recipe& recipe) {
  Problem problem;
  problem.seed = recipe.seed;
  problem.ranks = recipe.ranks;
  problem.experts = recipe.experts;
  problem.call = recipe.call;
  problem.first = recipe.first;
  problem.even_split = recipe.first.empty();
  for (int r = 0; problem.even_split && r <= recipe.ranks; ++r)
    problem.first.push_back(r * (recipe.experts / recipe.ranks));
  Random random(recipe.seed);
  const std::vector<std::int64_t> common =
      choose(random, std::vector<double>(index(recipe.experts), 1.0), recipe.call.topk);
  problem.max_tokens = recipe.max_tokens;
  for (int r = 0; r < recipe.ranks; ++r) {
    Input in;
    in.tokens = recipe.tokens.empty() ? 13 : recipe.tokens[index(r) % recipe.tokens.size()];
    if (recipe.max_tokens == 0)
      problem.max_tokens = std::max(problem.max_tokens, std::max<std::int64_t>(in.tokens, 1));
    Random own(recipe.seed * 7919 + static_cast<std::uint64_t>(r));
    if (recipe.call.mask)
      make_mask(recipe, problem, own, in);
    else
      make_ids(recipe, problem, own, common, in);
    problem.inputs.push_back(std::move(in));
  }
  if (recipe.call.mask) problem.call.weights = false;
  refill(problem, recipe.seed, recipe.fill);
  return problem;
}

std::string describe(const Problem& p) {
  static const char* names[] = {"packed", "grouped", "padded"};
  const Call& c = p.call;
  std::ostringstream out;
  out << "seed " << p.seed << ", R " << p.ranks << ", E " << p.experts << (p.even_split ? "" : " (uneven)")
      << ", K " << c.topk << ", H " << c.hidden << ' ' << sluice::name_of(c.dtype) << ", T {";
  for (int r = 0; r < std::min(p.ranks, 16); ++r) out << (r ? "," : "") << p.inputs[index(r)].tokens;
  out << "}, " << names[static_cast<int>(c.layout)] << (c.counts == Counts::exact ? " exact" : " bounded")
      << ", capacity " << c.capacity << (c.on_overflow == OnOverflow::drop ? " drop" : "") << ", alignment "
      << c.alignment << ", " << sluice::name_of(c.id_type) << " ids" << (c.mask ? " (mask)" : "")
      << (c.weights ? ", weights" : "") << ", quantise " << static_cast<int>(c.quantise) << ", scales "
      << c.scales << (c.scale_layout == ScaleLayout::column ? " column" : "")
      << (c.zero_padding ? ", zero padding" : "") << (c.checks == Checks::off ? ", unchecked" : "")
      << ", channel " << c.channel;
  return out.str();
}

sluice::CommunicatorOptions options_for(const Problem& problem, const std::string& engine) {
  sluice::CommunicatorOptions options;
  options.engine = engine;
  options.max_tokens = problem.max_tokens;
  options.experts = problem.experts;
  options.hidden = problem.call.hidden;
  options.topk = problem.call.mask ? 1 : problem.call.topk;
  options.dtype = problem.call.dtype;
  options.layout = problem.call.layout;
  options.alignment = problem.call.alignment;
  options.capacity = problem.call.capacity;
  if (!problem.even_split) options.first_expert = problem.first;
  options.deadline_ms = 20'000;
  return options;
}

}  // namespace conformance
