// count(): what a dispatch would send, without sending.
#include <vector>

#include <fmt/format.h>

#include "core/communicator_state.h"
#include "core/plan.h"

namespace sluice::core {

namespace {

// The tables of a route that does not exist yet, as far as plan fills them.
class PlannedTables {
 public:
  PlannedTables(const DispatchArgs& args, const DispatchCall& call, const Topology& topology) {
    tables_.tokens = call.tokens;
    tables_.topk = call.topk;
    tables_.ranks = topology.ranks;
    Slices measure;
    lay_out(measure, tables_, topology.experts);
    memory_.resize(static_cast<std::size_t>(measure.bytes()));
    Slices slices(memory_.data());
    lay_out(slices, tables_, topology.experts);
    PlanArgs plan;
    plan.topology = &topology;
    plan.route = tables_;
    plan.ids = args.expert_ids.data;
    plan.ids_are_64_bit = args.expert_ids.dtype == DataType::int64;
    plan.rank_mask = args.rank_mask.as<std::uint8_t>();
    plan_route(plan);
  }
  const RouteTables& tables() const { return tables_; }

 private:
  std::vector<std::byte> memory_;
  RouteTables tables_;
};

RoutingCounts read_counts(const RouteTables& tables, const Topology& topology) {
  RoutingCounts counts;
  counts.rank_mask.resize(static_cast<std::size_t>(tables.tokens * tables.ranks));
  for (std::size_t i = 0; i < counts.rank_mask.size(); ++i) counts.rank_mask[i] = tables.send_index[i] >= 0;
  const std::int32_t* const per_rank = tables.sent;
  const std::int32_t* const per_expert = per_rank + tables.ranks;
  counts.tokens_per_rank.assign(per_rank, per_expert);
  if (tables.topk > 0) counts.tokens_per_expert.assign(per_expert, per_expert + topology.experts);
  return counts;
}

}  // namespace

RoutingCounts CommunicatorState::count(const DispatchArgs& args) const {
  const Topology& topology = config_.topology;
  const std::string call_name = fmt::format("count on rank {} of {}", topology.rank, topology.ranks);
  DispatchCall call;
  check_route(args.route, call_name);
  check_routing(args, config_, call_name, call);
  if (call.routing != Routing::route) return read_counts(PlannedTables(args, call, topology).tables(), topology);
  const RouteState& route = *args.route.state();
  route.made->wait(std::chrono::milliseconds(-1));
  return read_counts(route.tables, topology);
}

}  // namespace sluice::core
