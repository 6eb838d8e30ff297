// V1 and S4: what count says.
#include <string>
#include <vector>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

PROMISE(V1, count_says_what_dispatch_would_send, {{1, 2, 5}}) {
  for (bool mask : {false, true}) {
    Recipe recipe = small_recipe(at.ranks, 33);
    recipe.missing = 0.2;
    recipe.call.mask = mask;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      const auto brought = bring(job.problem, self.rank);
      const sluice::RoutingCounts counts = comm.count(brought->args);
      const std::int64_t tokens = job.problem.inputs[index(self.rank)].tokens;
      ASSERT_EQ(counts.tokens_per_rank.size(), index(self.size));
      ASSERT_EQ(counts.rank_mask.size(), index(tokens * self.size));
      std::int64_t marked = 0;
      for (std::uint8_t m : counts.rank_mask) marked += m != 0;
      std::int64_t sum = 0;
      for (int r = 0; r < self.size; ++r) {
        EXPECT_EQ(counts.tokens_per_rank[index(r)], job.arrivals[index(r)].per_source[index(self.rank)]);
        sum += counts.tokens_per_rank[index(r)];
      }
      EXPECT_EQ(marked, sum);
      if (mask) {
        EXPECT_TRUE(counts.tokens_per_expert.empty());
        return;
      }
      std::vector<std::int64_t> chosen(index(job.problem.experts), 0);
      for (std::int64_t id : job.problem.inputs[index(self.rank)].ids)
        if (id >= 0) ++chosen[index(id)];
      EXPECT_EQ(counts.tokens_per_expert, chosen);
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      brought->args.expert_ids = {};
      brought->args.route = sent.route;
      EXPECT_EQ(comm.count(brought->args).tokens_per_rank, counts.tokens_per_rank);
    });
  }
}

// What count finds, dispatch would: the ids are checked by the same rule.
PROMISE(S4, count_checks_ids_as_dispatch_does, {{1, 2}}) {
  const Job job(small_recipe(at.ranks, 34));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    std::vector<std::int32_t, CallAllocator<std::int32_t>> ids{0, 1, 0, job.problem.experts};
    sluice::DispatchArgs args;
    args.expert_ids = sluice::ConstTensorView(ids.data(), DataType::int32, 2, 2);
    args.checks = sluice::Checks::on;
    expect_error<sluice::ArgumentError>(
        [&] { comm.count(args); },
        {"count on rank", "expert id " + std::to_string(job.problem.experts) + " in row 1, column 1"});
    args.checks = sluice::Checks::off;
    EXPECT_EQ(comm.count(args).tokens_per_expert[0], 2);
    args.checks = static_cast<sluice::Checks>(9);
    expect_error<sluice::ArgumentError>([&] { comm.count(args); }, {"checks = 9 is outside 0 to 2"});
    round_trip(comm, job, self.rank, {});
  });
}

}  // namespace
}  // namespace conformance
