// Random sequences of calls on one communicator: several results and routes alive, two channels, refusals and
// too little room in between, ranks that come late. What was asked for must still be right at the end.
#include <deque>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

// Jobs of one communicator: the same experts and limits, else as different as can be.
std::vector<Job> make_pool(int ranks, std::uint64_t seed) {
  Random random(seed);
  std::vector<Job> pool;
  std::vector<int> first{0};
  for (int r = 0; r < ranks; ++r) first.push_back(first.back() + static_cast<int>(random.between(1, 5)));
  for (int i = 0; i < 8; ++i) {
    Recipe recipe;
    recipe.seed = seed * 100 + static_cast<std::uint64_t>(i);
    recipe.ranks = ranks;
    recipe.first = first;
    recipe.experts = first.back();
    recipe.max_tokens = 30;
    recipe.missing = random.unit() * 0.4;
    for (int r = 0; r < ranks; ++r) recipe.tokens.push_back(random.chance(0.2) ? 0 : random.below(30));
    recipe.call.topk = static_cast<int>(random.between(1, 6));
    recipe.call.hidden = 8 * random.between(1, 30);
    recipe.call.layout = static_cast<Layout>(random.below(3));
    recipe.call.counts = random.chance(0.5) ? Counts::exact : Counts::bounded;
    recipe.call.alignment = recipe.call.layout == Layout::grouped ? random.between(1, 9) : 1;
    recipe.call.scales = random.chance(0.4) ? random.between(1, 5) : 0;
    recipe.call.channel = static_cast<int>(random.below(2));
    pool.emplace_back(recipe);
  }
  return pool;
}

struct Live {
  const Job* job = nullptr;
  std::unique_ptr<Brought> brought;
  sluice::DispatchResult sent;
};

struct Pending {
  const Job* job = nullptr;
  CombineCall call;
  std::unique_ptr<Returned> returned;
  sluice::CombineResult home;
};

// One rank's walk; `random` is the same on all ranks, so that all make the same calls.
class Walk {
 public:
  Walk(Rank& self, const std::vector<Job>& pool, std::uint64_t seed)
      : self_(self),
        pool_(pool),
        random_(seed),
        own_(seed + 77 * static_cast<std::uint64_t>(self.rank + 1)),
        comm_(self.group, options()) {}

  void step() {
    if (own_.chance(0.1)) sleep_ms(own_.unit() * 0.5);
    const double choice = random_.unit();
    if (live_.size() >= 4 || (choice < 0.1 && !live_.empty())) return forget();
    if (choice < 0.15) return refused();
    if (choice < 0.2) return no_room();
    if (choice < 0.45) return fresh();
    if (live_.empty()) return fresh();
    if (choice < 0.6) return again();
    combine();
  }

  void finish() {
    while (!live_.empty()) forget();
    while (!pending_.empty()) settle();
  }

 private:
  sluice::CommunicatorOptions options() const {
    sluice::CommunicatorOptions out = options_for(pool_[0].problem, self_.engine);
    out.arena_bytes = 64 << 20;
    return out;
  }

  const Job& any() { return pool_[index(random_.below(static_cast<std::int64_t>(pool_.size())))]; }
  Live& any_live() { return live_[index(random_.below(static_cast<std::int64_t>(live_.size())))]; }

  void fresh() {
    Live live;
    live.job = &any();
    live.brought = bring(live.job->problem, self_.rank);
    live.sent = comm_.dispatch(live.brought->args);
    live_.push_back(std::move(live));
  }

  void again() {
    Live& old = any_live();
    Live live;
    live.job = old.job;
    live.brought = bring(live.job->problem, self_.rank);
    live.brought->args.expert_ids = {};
    live.brought->args.route = old.sent.route;
    live.sent = comm_.dispatch(live.brought->args);
    live_.push_back(std::move(live));
  }

  void combine() {
    Live& live = any_live();
    check_dispatch(*live.job, self_.rank, live.sent, *live.brought);
    Pending pending;
    pending.job = live.job;
    pending.call = combine_call(live.job->problem);
    pending.call.seed = random_.next();
    pending.call.values = random_.chance(0.3);
    pending.call.biases = static_cast<int>(random_.below(3));
    pending.returned = give_back(comm_, *live.job, self_.rank, live.sent, pending.call,
                                 random_.chance(0.5) ? Memory::own : Memory::allocated);
    pending.home = comm_.combine(pending.returned->args);
    pending_.push_back(std::move(pending));
    if (pending_.size() > 3) settle();
  }

  // One rank breaks a rule; everybody is told, nothing else changes.
  void refused() {
    const Job& job = any();
    const int bad = static_cast<int>(random_.below(self_.size));
    const auto brought = bring(job.problem, self_.rank);
    if (self_.rank == bad) brought->args.num_sms = -7;
    const auto call = [&] { comm_.dispatch(brought->args).ready.wait(); };
    if (self_.rank == bad)
      expect_error<sluice::ArgumentError>(call);
    else
      expect_error<sluice::PeerError>(call, {"refused"});
  }

  void no_room() {
    const Job& job = any();
    bool small = false;
    for (const Arrivals& arrivals : job.arrivals)
      small |= job.problem.call.layout == Layout::padded
                   ? std::any_of(arrivals.per_expert.begin(), arrivals.per_expert.end(),
                                 [](std::int64_t n) { return n > 1; })
                   : arrivals.end > 1;
    if (!small) return;
    const auto brought = bring(job.problem, self_.rank);
    brought->args.capacity = 1;
    expect_error<sluice::CapacityError>([&] { comm_.dispatch(brought->args).ready.wait(); });
  }

  void forget() {
    Live& live = live_.front();
    check_dispatch(*live.job, self_.rank, live.sent, *live.brought);
    live_.pop_front();
  }

  void settle() {
    Pending& pending = pending_.front();
    check_combine(*pending.job, self_.rank, pending.call, pending.home);
    pending_.pop_front();
  }

  Rank& self_;
  const std::vector<Job>& pool_;
  Random random_, own_;
  std::deque<Live> live_;
  std::deque<Pending> pending_;
  sluice::Communicator comm_;
};

PROMISE(C1, random_sequences_of_calls, {{1, 2, 3, 4}}) {
  const int walks = long_runs() ? 40 : 3, steps = long_runs() ? 1000 : 150;
  for (int walk = 0; walk < walks && !testing::Test::HasFailure(); ++walk) {
    const std::uint64_t seed = 7000 + static_cast<std::uint64_t>(10 * walk + at.ranks);
    const std::vector<Job> pool = make_pool(at.ranks, seed);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Walk mine(self, pool, seed);
      for (int step = 0; step < steps && !failed_here(); ++step) {
        try {
          mine.step();
        } catch (const std::exception& error) {
          ADD_FAILURE() << "step " << step << ": " << error.what();
        }
      }
      if (!failed_here()) mine.finish();
    });
  }
}

}  // namespace
}  // namespace conformance
