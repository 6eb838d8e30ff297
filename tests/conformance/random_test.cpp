// Several hundred configurations with everything mixed. A failure prints its seed; SLUICE_SEED=n runs
// that one alone, SLUICE_SEED_BASE=n starts elsewhere.
#include <cstdlib>

#include "mixture.h"
#include "registry.h"

namespace conformance {
namespace {

void run_mixture(Rank& self, const Mixture& mixture) {
  const Job& job = mixture.job;
  sluice::Communicator comm(self.group, options_for(mixture, self.engine));
  if (!mixture.reuse) {
    round_trip(comm, job, self.rank, mixture.round);
    return;
  }
  const auto brought = bring(job.problem, self.rank, mixture.round.manner);
  const sluice::DispatchResult sent = comm.dispatch(brought->args);
  check_dispatch(job, self.rank, sent, *brought);
  const auto again = bring(mixture.second->problem, self.rank, mixture.round.manner);
  again->args.expert_ids = {};
  again->args.rank_mask = {};
  again->args.route = sent.route;
  const sluice::DispatchResult second = comm.dispatch(again->args);
  check_dispatch(*mixture.second, self.rank, second, *again);
  const CombineCall& call = mixture.round.combine;
  const auto returned = give_back(comm, *mixture.second, self.rank, second, call, mixture.round.memory);
  check_combine(*mixture.second, self.rank, call, comm.combine(returned->args));
}

std::uint64_t from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

PROMISE(V1, random_configurations, {{1, 2, 3, 4, 5, 7, 8}}) {
  const std::uint64_t only = from_environment("SLUICE_SEED");
  const bool reduced = std::getenv("SLUICE_REDUCED") != nullptr;
  const int count = only ? 1 : (long_runs() ? 1000 : reduced || at.ranks > 4 ? 25 : 60);
  const std::uint64_t first =
      only ? only : from_environment("SLUICE_SEED_BASE") + 100'000 * static_cast<std::uint64_t>(at.ranks);
  const int batch = 20;
  for (int done = 0; done < count && !testing::Test::HasFailure(); done += batch) {
    std::vector<Mixture> mixtures;
    for (int i = done; i < std::min(count, done + batch); ++i)
      mixtures.push_back(mix_up(at.ranks, first + static_cast<std::uint64_t>(i)));
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      for (const Mixture& mixture : mixtures) {
        SCOPED_TRACE("SLUICE_SEED=" + std::to_string(mixture.job.problem.seed));
        try {
          run_mixture(self, mixture);
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what() << "\n  " << describe(mixture.job.problem);
        }
        if (failed_here()) return;
      }
    });
  }
}

}  // namespace
}  // namespace conformance
