// V4: the CPU engine and the CUDA engine side by side in the same ranks, byte for byte.
#include <algorithm>
#include <cstring>

#include "mixture.h"
#include "registry.h"

namespace conformance {
namespace {

// All that a caller sees of one configuration on one engine.
struct Outcome {
  Image sent, again;
  Bytes home;
  std::vector<float> values;
};

Outcome outcome_on(const std::string& engine, Rank& self, const Mixture& mixture) {
  Outcome out;
  const Job* job = &mixture.job;
  sluice::Communicator comm(self.group, options_for(mixture, engine));
  const auto brought = bring(job->problem, self.rank, mixture.round.manner);
  sluice::DispatchResult sent = comm.dispatch(brought->args);
  out.sent = observe(job->problem, sent);
  std::unique_ptr<Brought> next;
  if (mixture.reuse) {
    job = mixture.second.get();
    next = bring(job->problem, self.rank, mixture.round.manner);
    next->args.expert_ids = {};
    next->args.rank_mask = {};
    next->args.route = sent.route;
    sent = comm.dispatch(next->args);
    out.again = observe(job->problem, sent);
  }
  const auto returned = give_back(comm, *job, self.rank, sent, mixture.round.combine, mixture.round.memory);
  const sluice::CombineResult home = comm.combine(returned->args);
  home.ready.wait();
  out.home = tight(home.rows);
  out.values = elements_of<float>(home.values);
  home.inputs_free.wait();
  return out;
}

bool same_row(const Bytes& a, const Bytes& b, std::int64_t row, std::int64_t bytes) {
  return std::memcmp(a.data() + row * bytes, b.data() + row * bytes, index(bytes)) == 0;
}

// Rows that no token fills are compared only where they are zeroed: else they are what lay there.
void expect_same(const Job& job, int rank, const Image& cpu, const Image& cuda) {
  ASSERT_EQ(cpu.rows, cuda.rows);
  ASSERT_EQ(cpu.row_bytes, cuda.row_bytes);
  ASSERT_EQ(cpu.scale_bytes, cuda.scale_bytes);
  EXPECT_EQ(cpu.num_rows, cuda.num_rows);
  EXPECT_EQ(cpu.dropped, cuda.dropped);
  EXPECT_EQ(cpu.counts, cuda.counts);
  EXPECT_EQ(cpu.aligned_counts, cuda.aligned_counts);
  EXPECT_EQ(cpu.offsets, cuda.offsets);
  EXPECT_EQ(cpu.local_ids, cuda.local_ids);
  EXPECT_EQ(cpu.host_rows, cuda.host_rows);
  EXPECT_EQ(cpu.host_per_expert, cuda.host_per_expert);
  EXPECT_EQ(cpu.host_per_source, cuda.host_per_source);
  ASSERT_EQ(cpu.weights.size(), cuda.weights.size());
  for (std::size_t i = 0; i < cpu.weights.size(); ++i)
    ASSERT_TRUE(same_bits(cpu.weights[i], cuda.weights[i])) << "weight " << i;
  const Image expected =
      expected_image(job.problem, job.arrivals[index(rank)], rank, cpu.rows, cpu.per_expert_rows);
  for (std::int64_t row = 0; row < cpu.rows; ++row) {
    if (!expected.filled[index(row)] && !job.problem.call.zero_padding) continue;
    ASSERT_TRUE(same_row(cpu.data, cuda.data, row, cpu.row_bytes)) << "row " << row;
    if (cpu.scale_bytes == 0) continue;
    ASSERT_TRUE(same_row(cpu.scales, cuda.scales, row, cpu.scale_bytes)) << "scales of row " << row;
  }
}

void compare_engines(Rank& self, const Mixture& mixture) {
  const Outcome cpu = outcome_on("cpu", self, mixture);
  const Outcome cuda = outcome_on("cuda", self, mixture);
  expect_same(mixture.job, self.rank, cpu.sent, cuda.sent);
  if (mixture.reuse) expect_same(*mixture.second, self.rank, cpu.again, cuda.again);
  EXPECT_TRUE(cpu.home == cuda.home) << "combine";
  EXPECT_EQ(cpu.values.size(), cuda.values.size());
  for (std::size_t i = 0; i < std::min(cpu.values.size(), cuda.values.size()); ++i)
    EXPECT_TRUE(same_bits(cpu.values[i], cuda.values[i])) << "value " << i;
}

// A thousand configurations over all numbers of ranks.
PROMISE(V4, cpu_and_cuda_give_the_same_bytes, {{1, 2, 3, 4, 5, 7, 8}, Where::threads}) {
  if (!on_cuda()) GTEST_SKIP() << "needs the CUDA engine: set SLUICE_TEST_ENGINE=cuda";
  constexpr int configurations = 143, batch = 20;
  for (int done = 0; done < configurations && !testing::Test::HasFailure(); done += batch) {
    std::vector<Mixture> mixtures;
    for (int i = done; i < std::min(configurations, done + batch); ++i)
      mixtures.push_back(mix_up(at.ranks, 10'000'000 + 100'000 * static_cast<std::uint64_t>(at.ranks) +
                                              static_cast<std::uint64_t>(i)));
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      for (const Mixture& mixture : mixtures) {
        SCOPED_TRACE(describe(mixture.job.problem));
        compare_engines(self, mixture);
        if (failed_here()) return;
      }
    });
  }
}

}  // namespace
}  // namespace conformance
