// count(): what a dispatch would send, without sending.
#include <new>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "core/communicator_state.h"
#include "core/plan.h"
#include "core/sentences.h"

namespace sluice::core {

namespace {

template <class T>
std::vector<T> on_host(engine::Engine& engine, const T* data, std::int64_t count) {
  std::vector<T> copy(static_cast<std::size_t>(count));
  if (count > 0) engine.fetch(copy.data(), data, count * static_cast<std::int64_t>(sizeof(T)));
  return copy;
}

// The tables of a route that does not exist yet, as far as plan fills them; the caller's decisions may lie
// where the host cannot read.
class PlannedTables {
 public:
  PlannedTables(const DispatchArgs& args, const DispatchCall& call, const Topology& topology, engine::Engine& engine,
                const std::string& where) {
    const auto bytes_of = [](const ConstTensorView& view) { return view.elements() * size_of(view.dtype); };
    const auto ids = on_host(engine, args.expert_ids.as<std::byte>(), bytes_of(args.expert_ids));
    const auto mask = on_host(engine, args.rank_mask.as<std::uint8_t>(), bytes_of(args.rank_mask));
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
    plan.ids = ids.data();
    plan.ids_are_64_bit = args.expert_ids.dtype == DataType::int64;
    plan.rank_mask = args.rank_mask.given() ? mask.data() : nullptr;
    Report report;
    plan.checks = call.checks;
    plan.report = &report;
    plan_route(plan);
    if (report.fault.problem != IdProblem::none) {
      throw ArgumentError(fmt::format("{}: {}", where, sentence(report.fault)), topology.rank);
    }
  }
  const RouteTables& tables() const { return tables_; }

 private:
  std::vector<std::byte> memory_;
  RouteTables tables_;
};

RoutingCounts read_counts(const RouteTables& tables, const Topology& topology, engine::Engine& engine) {
  RoutingCounts counts;
  const auto send_index = on_host(engine, tables.send_index, tables.tokens * tables.ranks);
  const auto sent = on_host(engine, tables.sent, tables.ranks + topology.experts);
  counts.rank_mask.resize(send_index.size());
  for (std::size_t i = 0; i < counts.rank_mask.size(); ++i) counts.rank_mask[i] = send_index[i] >= 0;
  const auto per_expert = sent.begin() + tables.ranks;
  counts.tokens_per_rank.assign(sent.begin(), per_expert);
  if (tables.topk > 0) counts.tokens_per_expert.assign(per_expert, sent.end());
  return counts;
}

}  // namespace

RoutingCounts CommunicatorState::count(const DispatchArgs& args) const try {
  const Topology& topology = config_.topology;
  const std::string& call_name = where(OperationKind::none);
  const ArgumentCheck check(call_name, topology.rank);
  DispatchCall call;
  require_own_process(check);
  check_route(args.route, call_name);
  check_routing(args, config_, call_name, call);
  if (call.routing != Routing::route) return read_counts(PlannedTables(args, call, topology, *engine_, call_name).tables(), topology, *engine_);
  const RouteState& route = *args.route.state();
  check.require(!route.made->captured(), "the route was made by a call in a graph, of which the host does not know when it has run");
  route.made->wait(std::chrono::milliseconds(-1));
  return read_counts(route.tables, topology, *engine_);
} catch (const std::bad_alloc&) {
  throw SystemError(where(OperationKind::none) + no_memory_left, config_.topology.rank);
}

}  // namespace sluice::core
