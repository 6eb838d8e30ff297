// Two ranks, as threads, send each token to the ranks of its experts and sum what comes back.
#include <sluice/sluice.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

static void rank_main(sluice::Group group, bool& right) {
  constexpr std::int64_t tokens = 4, hidden = 16, topk = 2;
  sluice::Communicator comm(
      group,
      {.max_tokens = tokens, .experts = 4, .hidden = hidden, .topk = topk, .dtype = sluice::DataType::fp32});
  std::vector<float> x(tokens * hidden, static_cast<float>(1 + group.rank()));
  std::vector<std::int32_t> ids{0, 1, 0, 2, 3, 2, 1, 3};  // experts 0 and 1 are on rank 0, 2 and 3 on rank 1

  sluice::DispatchArgs out;
  out.rows = {x.data(), sluice::DataType::fp32, tokens, hidden};
  out.expert_ids = {ids.data(), sluice::DataType::int32, tokens, topk};
  const sluice::DispatchResult sent = comm.dispatch(out);
  sent.ready.wait();
  std::printf("rank %d got %ld rows\n", group.rank(), static_cast<long>(sent.host.rows));

  sluice::CombineArgs back;  // an expert would work on sent.rows here
  back.rows = sent.rows;
  back.route = sent.route;
  const sluice::CombineResult home = comm.combine(back);
  home.ready.wait();
  const float ranks_of_token[] = {1, 2, 1, 2};
  for (std::int64_t i = 0; i < tokens * hidden; ++i)
    right = right && home.rows.as<float>()[i] == ranks_of_token[i / hidden] * x[i];
}

int main() {
  bool right[2] = {true, true};
  // Each thread gets the only handle of its rank, so that a peer sees at once when it has gone.
  std::vector<sluice::Group> groups = sluice::Group::threads(2);
  std::thread other(rank_main, std::move(groups[1]), std::ref(right[1]));
  rank_main(std::move(groups[0]), right[0]);
  other.join();
  std::puts(right[0] && right[1] ? "every token came home as the sum of its rows" : "WRONG");
  return right[0] && right[1] ? 0 : 1;
}
