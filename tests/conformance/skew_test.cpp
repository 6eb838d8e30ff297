// S5 and S6: offsets beyond 2^31, and everything in one place.
#include <cstring>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

PROMISE(S6, skewed_routing_is_exact, {{1, 2, 3, 5}}) {
  const Routing routings[] = {Routing::one_expert, Routing::one_set,    Routing::one_rank,
                              Routing::log_normal, Routing::ten_random, Routing::nowhere};
  std::uint64_t seed = 600;
  for (Routing routing : routings)
    for (Layout layout : layouts) {
      Recipe recipe;
      recipe.seed = ++seed;
      recipe.ranks = at.ranks;
      recipe.experts = 8 * at.ranks;
      recipe.tokens = {40, 33};
      recipe.routing = routing;
      recipe.call.layout = layout;
      recipe.call.counts = seed % 2 ? Counts::exact : Counts::bounded;
      const Job job(recipe);
      run_ranks(at.place, at.ranks, [&](Rank& self) {
        Round round;
        round.combine = combine_call(job.problem);
        run_job(self, job, round);
      });
    }
}

// 40 000 rows of 64 KiB: 2.6e9 bytes and elements, sent and received.
PROMISE(S5, more_than_2_31_elements_and_bytes, {{1}, Where::threads}) {
  if (!long_runs()) GTEST_SKIP() << "needs 6 GB and some time: set SLUICE_LONG=1";
  run_ranks(at.place, at.ranks,
            [&](Rank& self) {
              constexpr std::int64_t tokens = 40'000, hidden = 65'536;
              sluice::CommunicatorOptions options;
              options.engine = self.engine;
              options.max_tokens = tokens;
              options.experts = 2;
              options.topk = 1;
              options.hidden = hidden;
              options.dtype = DataType::e4m3;
              sluice::Communicator comm(self.group, options);
              CallVector<std::uint64_t> rows(index(tokens * hidden / 8));
              for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = mix(i);
              CallVector<std::int32_t> ids;
              for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(t % 2 == 0);
              sluice::DispatchArgs args;
              args.rows = sluice::ConstTensorView(rows.data(), DataType::e4m3, tokens, hidden);
              args.expert_ids = sluice::ConstTensorView(ids.data(), DataType::int32, tokens, 1);
              const sluice::DispatchResult sent = comm.dispatch(args);
              sent.ready.wait();
              ASSERT_EQ(sent.host.rows, tokens);
              Bytes row(index(hidden));
              for (std::int64_t t = 0; t < tokens; ++t) {
                fetch(row.data(), sent.rows.as<std::byte>() + t * hidden, row.size());
                ASSERT_EQ(std::memcmp(row.data(), rows.data() + t * hidden / 8, row.size()), 0)
                    << "row " << t;
              }
            },
            {.timeout_s = 300, .lost = {}, .leave_s = 5, .no_group = false});
}

}  // namespace
}  // namespace conformance
