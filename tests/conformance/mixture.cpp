#include "mixture.h"

#include <algorithm>

namespace conformance {
namespace {

template <class T, std::size_t N>
T one_of(Random& random, const T (&list)[N]) {
  return list[random.below(N)];
}

void choose_split(Random& random, Recipe& recipe) {
  recipe.experts = recipe.ranks * static_cast<int>(random.between(1, 9));
  if (random.chance(0.5)) return;
  recipe.first = {0};
  for (int r = 0; r < recipe.ranks; ++r)
    recipe.first.push_back(recipe.first.back() +
                           static_cast<int>(random.between(random.chance(0.2) ? 0 : 1, 8)));
  if (recipe.first.back() == 0) recipe.first.back() = 3;
  recipe.experts = recipe.first.back();
}

void choose_element(Random& random, Call& call) {
  static const DataType types[] = {DataType::bf16, DataType::bf16, DataType::fp16, DataType::fp32,
                                   DataType::e4m3, DataType::e5m2, DataType::int8, DataType::fp4x2};
  call.dtype = one_of(random, types);
  const std::int64_t step = 16 / sluice::size_of(call.dtype);
  call.hidden = step * (random.chance(0.1) ? random.between(1, 200) : random.between(1, 20));
  const bool number =
      call.dtype == DataType::bf16 || call.dtype == DataType::fp16 || call.dtype == DataType::fp32;
  if (number && random.chance(0.35)) {
    call.hidden = (call.hidden + 15) / 16 * 16;
    call.quantise = random.chance(0.5) ? Quantise::e4m3 : Quantise::e4m3_power_of_two;
  } else if (random.chance(0.4)) {
    static const DataType scale_types[] = {DataType::fp32, DataType::uint8, DataType::bf16, DataType::e4m3};
    call.scale_type = one_of(random, scale_types);
    call.scales = 4 / std::min<std::int64_t>(4, sluice::size_of(call.scale_type)) * random.between(1, 9);
  }
  if (random.chance(0.4)) call.scale_layout = ScaleLayout::column;
}

void choose_call(Random& random, Recipe& recipe) {
  Call& call = recipe.call;
  call.topk = static_cast<int>(random.chance(0.1) ? random.between(9, 64) : random.between(1, 8));
  choose_element(random, call);
  call.layout = static_cast<Layout>(random.below(3));
  call.counts = random.chance(0.5) ? Counts::exact : Counts::bounded;
  call.alignment = call.layout == Layout::grouped && random.chance(0.6) ? random.between(1, 40) : 1;
  call.weights = random.chance(0.7);
  call.id_type = random.chance(0.5) ? DataType::int32 : DataType::int64;
  call.zero_padding = random.chance(0.4);
  call.channel = static_cast<int>(random.below(2));
  if (call.layout == Layout::packed && random.chance(0.15)) call.mask = true;
  call.checks = one_of(random, {Checks::by_default, Checks::on, Checks::off});
  recipe.missing = random.chance(0.5) ? random.unit() * 0.7 : 0;
  if (call.checks == Checks::off && random.chance(0.7)) {
    recipe.twice = random.unit() * 0.5;
    recipe.outside = random.unit() * 0.5;
  }
}

void choose_tokens(Random& random, Recipe& recipe) {
  const std::int64_t most = random.chance(0.1) ? 150 : 25;
  for (int r = 0; r < recipe.ranks; ++r)
    recipe.tokens.push_back(random.chance(0.15) ? 0 : random.between(1, most));
  recipe.max_tokens = most + random.below(10);
  static const Routing routings[] = {Routing::uniform,    Routing::uniform,    Routing::uniform,
                                     Routing::one_expert, Routing::one_set,    Routing::one_rank,
                                     Routing::log_normal, Routing::ten_random, Routing::nowhere};
  recipe.routing = one_of(random, routings);
  recipe.fill = one_of(random, {Fill::tame, Fill::wild, Fill::noise});
}

// Sometimes a capacity that is just enough, more, or, with drop, too little.
void choose_capacity(Random& random, Recipe& recipe) {
  if (random.chance(0.4)) return;
  std::int64_t need = 1;
  for (const Arrivals& arrivals : arrivals_of_all(make_problem(recipe))) {
    if (recipe.call.layout != Layout::padded)
      need = std::max(need, arrivals.end);
    else
      for (std::int64_t n : arrivals.per_expert) need = std::max(need, n);
  }
  recipe.call.capacity = need + (random.chance(0.5) ? 0 : random.below(30));
  if (random.chance(0.5)) return;
  recipe.call.on_overflow = OnOverflow::drop;
  if (random.chance(0.8)) recipe.call.capacity = random.between(1, need);
}

Round choose_round(Random& random, const Problem& problem) {
  Round round;
  round.manner = {random.chance(0.3), random.chance(0.3), random.chance(0.3), random.chance(0.3), 0};
  static const DataType types[] = {DataType::bf16, DataType::fp16, DataType::fp32};
  round.combine = combine_call(problem, one_of(random, types));
  round.combine.hidden = (problem.call.hidden + 7) / 8 * 8;
  round.combine.weights = random.chance(0.6);
  round.combine.values = !problem.call.mask && random.chance(0.4);
  round.combine.biases = static_cast<int>(random.below(3));
  round.combine.single_rounding = random.chance(0.4);
  round.combine.fill = random.chance(0.3) ? Fill::wild : Fill::tame;
  round.memory = static_cast<Memory>(random.below(3));
  return round;
}

}  // namespace

Mixture mix_up(int ranks, std::uint64_t seed) {
  Random random(seed);
  Recipe recipe;
  recipe.seed = seed;
  recipe.ranks = ranks;
  choose_split(random, recipe);
  choose_call(random, recipe);
  choose_tokens(random, recipe);
  choose_capacity(random, recipe);
  Mixture mixture{Job(recipe), {}, random.chance(0.4), random.chance(0.5), nullptr, 0};
  mixture.round = choose_round(random, mixture.job.problem);
  mixture.workers = static_cast<int>(random.below(4));
  if (mixture.reuse) {
    mixture.second = std::make_unique<Job>(mixture.job);
    if (mixture.fresh_data) refill(mixture.second->problem, seed + 1, recipe.fill);
  }
  return mixture;
}

sluice::CommunicatorOptions options_for(const Mixture& mixture, const std::string& engine) {
  sluice::CommunicatorOptions options = options_for(mixture.job.problem, engine);
  options.arena_bytes = 128 << 20;
  options.workers = mixture.workers;
  return options;
}

}  // namespace conformance
