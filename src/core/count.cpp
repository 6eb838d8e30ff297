// count(): what a dispatch would send, without sending.
#include <algorithm>

#include "core/argument_check.h"
#include "core/communicator_state.h"

namespace sluice::core {

namespace {

template <class Id>
void count_ids(const Id* ids, const DispatchCall& call, const Topology& topology, RoutingCounts& counts) {
  for (std::int64_t t = 0; t < call.tokens; ++t) {
    std::uint8_t* const mask = counts.rank_mask.data() + t * topology.ranks;
    for (std::int32_t k = 0; k < call.topk; ++k) {
      const Id* const row = ids + t * call.topk;
      if (row[k] < 0 || row[k] >= topology.experts || std::find(row, row + k, row[k]) != row + k) continue;
      ++counts.tokens_per_expert[static_cast<std::size_t>(row[k])];
      mask[topology.owner_of(static_cast<std::int32_t>(row[k]))] = 1;
    }
  }
}

}  // namespace

RoutingCounts CommunicatorState::count(const DispatchArgs& args) const {
  const Topology& topology = config_.topology;
  const std::string call_name = fmt::format("count on rank {} of {}", topology.rank, topology.ranks);
  DispatchCall call;
  check_route(args.route, call_name);
  check_routing(args, config_, call_name, call);
  RoutingCounts counts;
  counts.rank_mask.resize(static_cast<std::size_t>(call.tokens * topology.ranks));
  if (call.topk > 0) counts.tokens_per_expert.resize(static_cast<std::size_t>(topology.experts));
  if (call.routing == Routing::rank_mask) {
    const auto* const mask = args.rank_mask.as<std::uint8_t>();
    for (std::size_t i = 0; i < counts.rank_mask.size(); ++i) counts.rank_mask[i] = mask[i] != 0;
  } else if (call.routing == Routing::route) {
    const RouteState& route = *args.route.state();
    route.made->wait(std::chrono::milliseconds(-1));
    for (std::size_t i = 0; i < counts.rank_mask.size(); ++i) counts.rank_mask[i] = route.tables.send_index[i] >= 0;
    for (std::size_t e = 0; e < counts.tokens_per_expert.size(); ++e) {
      counts.tokens_per_expert[e] = route.tables.sent[topology.ranks + static_cast<std::int64_t>(e)];
    }
  } else if (args.expert_ids.dtype == DataType::int64) {
    count_ids(args.expert_ids.as<std::int64_t>(), call, topology, counts);
  } else {
    count_ids(args.expert_ids.as<std::int32_t>(), call, topology, counts);
  }
  counts.tokens_per_rank.resize(static_cast<std::size_t>(topology.ranks));
  for (std::size_t i = 0; i < counts.rank_mask.size(); ++i) {
    counts.tokens_per_rank[i % static_cast<std::size_t>(topology.ranks)] += counts.rank_mask[i];
  }
  return counts;
}

}  // namespace sluice::core
