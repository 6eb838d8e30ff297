// `sluice demo`: a real mixture-of-experts layer across ranks, checked against the same layer in one place.
#include <fmt/format.h>
#include <sluice/sluice.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>

#include "cli/bench_case.h"
#include "cli/demo_report.h"
#include "cli/engine_views.h"
#include "cli/json.h"
#include "cli/moe_layer.h"
#include "cli/routing_file.h"
#include "cli/say.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct DemoFlags {
  CommonFlags common;
  std::string routing;
  std::int64_t tokens = -1;  // per rank
  int experts = 0;
  int topk = 0;
  int hidden = 256;
  int inner = 64;
  std::string trace_dir;
};

// The whole job, equal on all ranks.
struct DemoPlan {
  DemoFlags flags;
  LayerShape shape;
  std::optional<Decisions> recorded;  // or:
  std::optional<Router> router;
  std::vector<std::int64_t> first_token;  // [ranks + 1]
  std::vector<int> first_expert;          // [ranks + 1]

  std::int64_t tokens_of(int rank) const { return first_token[rank + 1] - first_token[rank]; }
  std::int64_t max_tokens() const {
    std::int64_t most = 0;
    for (std::size_t r = 0; r + 1 < first_token.size(); ++r)
      most = std::max(most, tokens_of(static_cast<int>(r)));
    return most;
  }
  std::int64_t min_tokens() const {
    std::int64_t least = max_tokens();
    for (std::size_t r = 0; r + 1 < first_token.size(); ++r)
      least = std::min(least, tokens_of(static_cast<int>(r)));
    return least;
  }
  // Decisions for tokens [first, first + count) of the batch.
  Decisions decide(std::int64_t first, const std::vector<std::uint16_t>& tokens) const {
    const auto count = static_cast<std::int64_t>(tokens.size()) / shape.hidden;
    return recorded ? slice(*recorded, first, count) : router->route(tokens);
  }
};

DemoPlan make_plan(const DemoFlags& flags, int ranks) {
  DemoPlan plan;
  plan.flags = flags;
  if (flags.hidden % 8 != 0)
    throw UsageError(
        fmt::format("--hidden {} is not a multiple of 8 (rows are multiples of 16 bytes)", flags.hidden));
  if (!flags.routing.empty()) plan.recorded = read_routing_file(flags.routing);
  RecordedShape chosen;
  if (plan.recorded) {
    chosen = shape_of_recorded(*plan.recorded, flags.routing, flags.experts, flags.topk);
  } else {
    chosen.experts = flags.experts > 0 ? flags.experts : 256;
    chosen.topk = flags.topk > 0 ? flags.topk : std::min(8, chosen.experts);
    require_enough_experts(chosen.experts, chosen.topk);
  }
  plan.shape = {.experts = chosen.experts,
                .topk = chosen.topk,
                .hidden = flags.hidden,
                .inner = flags.inner,
                .seed = flags.common.seed};
  if (!plan.recorded) plan.router.emplace(plan.shape);
  plan.first_expert = split_experts(plan.shape.experts, ranks);
  plan.first_token.push_back(0);
  for (int r = 0; r < ranks; ++r) {
    // A recorded file is shared out whole, once, unless --tokens says otherwise.
    const std::int64_t all = plan.recorded ? plan.recorded->tokens() : 0;
    const std::int64_t share = flags.tokens >= 0 ? flags.tokens
                               : plan.recorded   ? all / ranks + (r < all % ranks ? 1 : 0)
                                                 : 512;
    plan.first_token.push_back(plan.first_token.back() + share);
  }
  return plan;
}

// What one rank hands in.
Json rank_result(const DispatchResult& sent, const std::vector<double>& stage_us, const CombineResult& home,
                 std::int64_t tokens, int hidden) {
  Json result;
  result["stage_us"] = stage_us;
  result["per_source"] = sent.host.per_source;
  result["per_expert"] = sent.host.per_expert;
  const auto bytes = static_cast<std::size_t>(tokens * hidden) * sizeof(std::uint16_t);
  std::vector<std::uint8_t> rows(bytes);
  if (bytes > 0) std::copy_n(home.rows.as<std::uint8_t>(), bytes, rows.data());
  result["rows"] = Json::binary(std::move(rows));
  return result;
}

CommunicatorOptions options_of(const DemoPlan& plan) {
  CommunicatorOptions options;
  options.engine = plan.flags.common.engine;
  options.max_tokens = std::max<std::int64_t>(1, plan.max_tokens());
  options.experts = plan.shape.experts;
  options.hidden = plan.shape.hidden;
  options.topk = plan.shape.topk;
  options.layout = Layout::grouped;
  options.first_expert = plan.first_expert;
  options.deadline_ms = plan.flags.common.deadline_ms;
  options.trace_dir = plan.flags.trace_dir;
  return options;
}

// The local experts that have rows, by their place in this rank.
std::map<int, Expert> load_experts(const DemoPlan& plan, int rank, const DispatchResult& sent) {
  std::map<int, Expert> experts;
  for (std::size_t e = 0; e < sent.host.per_expert.size(); ++e) {
    const int local = static_cast<int>(e);
    if (sent.host.per_expert[e] > 0)
      experts.emplace(local, Expert(plan.shape, plan.first_expert[rank] + local));
  }
  return experts;
}

// Every local expert over its rows.
void run_experts(const std::map<int, Expert>& experts, std::int64_t hidden, const DispatchResult& sent,
                 const TensorView& done) {
  const std::uint16_t* in = sent.rows.as<std::uint16_t>();
  std::uint16_t* out = done.as<std::uint16_t>();
  const std::int64_t* offsets = sent.offsets.as<std::int64_t>();
  for (const auto& [local, expert] : experts) {
    const std::int64_t end = offsets[local] + sent.host.per_expert[local];
    for (std::int64_t row = offsets[local]; row < end; ++row)
      expert.forward(in + row * hidden, out + row * hidden);
  }
}

std::string demo_rank(const DemoPlan& plan, RankContext& context) {
  take_gpu(plan.flags.common, context);
  Communicator comm(context.group, options_of(plan));
  const std::int64_t first = plan.first_token[context.rank];
  const std::int64_t tokens = plan.tokens_of(context.rank);
  const std::int64_t hidden = plan.shape.hidden;
  const auto x = make_tokens(plan.shape, first, tokens);
  std::vector<double> stage_us;
  // All ranks begin a stage together, so that its time is its own and not a slower peer's.
  const auto stage = [&](auto&& body) {
    context.group.barrier();
    const auto begin = Clock::now();
    body();
    stage_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  };
  Decisions decisions;
  stage([&] { decisions = plan.decide(first, x); });
  DispatchArgs out;  // in host memory
  out.rows = ConstTensorView(x.data(), DataType::bf16, tokens, hidden);
  out.expert_ids = ConstTensorView(decisions.ids.data(), DataType::int32, tokens, plan.shape.topk);
  out.weights = ConstTensorView(decisions.weights.data(), DataType::fp32, tokens, plan.shape.topk);
  out.layout = Layout::grouped;
  out = for_engine(comm, std::move(out));
  DispatchResult sent;
  stage([&] {
    sent = comm.dispatch(out);
    sent.ready.wait();
  });
  const auto experts = load_experts(plan, context.rank, sent);
  // Arena memory, so that combine can read the rows where they are.
  const TensorView done = sent.host.rows > 0 ? comm.allocate(sent.host.rows, hidden * 2)
                                             : TensorView(nullptr, DataType::bf16, 0, hidden);
  stage([&] {
    const TensorView outputs = on_host(comm, done);
    run_experts(experts, hidden, on_host(comm, sent), outputs);
    put_back(comm, outputs, done);
  });
  CombineArgs back;
  back.rows = done;
  back.route = sent.route;
  back.weights = sent.weights;
  CombineResult home;
  stage([&] {
    home = comm.combine(back);
    home.ready.wait();
  });
  const auto packed =
      Json::to_cbor(rank_result(sent, stage_us, on_host(comm, home), tokens, plan.shape.hidden));
  return {packed.begin(), packed.end()};
}

// Puts the ranks' results together and compares them with the dense layer.
DemoReport judge(const DemoPlan& plan, const std::vector<std::string>& results) {
  DemoReport report;
  const int ranks = static_cast<int>(results.size());
  report.rows.assign(results.size(), std::vector<std::int64_t>(results.size(), 0));
  std::vector<std::uint16_t> outputs;
  for (int r = 0; r < ranks; ++r) {
    const Json result = Json::from_cbor(results[r]);
    const auto& binary = result["rows"].get_binary();
    const auto at = outputs.size();
    outputs.resize(at + binary.size() / 2);
    std::copy(binary.begin(), binary.end(), reinterpret_cast<std::uint8_t*>(outputs.data() + at));
    for (int s = 0; s < ranks; ++s) report.rows[s][r] = result["per_source"].at(static_cast<std::size_t>(s));
    for (const auto& count : result["per_expert"]) report.rows_per_expert.push_back(count);
    for (std::size_t i = 0; i < report.stage_us.size(); ++i) {
      report.stage_us[i] = std::max(report.stage_us[i], result["stage_us"].at(i).get<double>());
    }
  }
  const auto x = make_tokens(plan.shape, 0, plan.first_token.back());
  const Decisions decisions = plan.decide(0, x);
  report.comparison = compare_with_dense(plan.shape, plan.first_expert, x, decisions, outputs);
  report.counts_right = report.rows_per_expert == rows_per_expert(decisions, plan.shape.experts);
  for (int r = 0; r < ranks; ++r) {
    const Decisions mine = slice(decisions, plan.first_token[r], plan.tokens_of(r));
    report.counts_right = report.counts_right && report.rows[r] == rows_per_rank(mine, plan.first_expert);
  }
  return report;
}

int run_demo(const DemoFlags& flags) {
  if (!flags.trace_dir.empty()) require_traced_engine(flags.common, "--trace");
  Launcher launcher(flags.common.launch, flags.common.ranks, flags.common.default_ranks, flags.common.meeting_ms());
  const DemoPlan plan = make_plan(flags, launcher.ranks());
  const bool progress = isatty(STDERR_FILENO) != 0 && launcher.prints();
  if (progress) say("{} ...", ranks_as(launcher.ranks(), launcher.launch()));
  const auto results = launcher.run([&](RankContext& context) { return demo_rank(plan, context); });
  if (!launcher.prints()) return exit_done;
  if (progress) say("\r\033[Kcomparing with the dense layer ...");
  DemoReport report = judge(plan, results);
  if (progress) say("\r\033[K");
  report.shape = plan.shape;
  report.tokens = plan.max_tokens();
  report.fewest_tokens = plan.min_tokens();
  if (plan.recorded && plan.first_token.back() > plan.recorded->tokens()) report.recorded_tokens = plan.recorded->tokens();
  report.first_expert = plan.first_expert;
  report.routing = flags.routing;
  report.launch = launcher.launch();
  if (flags.common.json) {
    print_line(demo_record(report));
  } else {
    print_demo(report);
  }
  return report.ok() ? exit_done : exit_failed;
}

}  // namespace

Command add_demo(CLI::App& program) {
  auto flags = std::make_shared<DemoFlags>();
  flags->common.default_ranks = 4;
  CLI::App* app = program.add_subcommand(
      "demo",
      "Run a real mixture-of-experts layer across ranks and check it against the same layer in one place");
  add_common_flags(*app, flags->common);
  app->add_option(
         "--routing", flags->routing,
         "Recorded router decisions, CSV or CSV.gz: token,expert0..,weight0.. [a DeepSeek-V3-like gate]")
      ->type_name("FILE");
  app->add_option("--tokens", flags->tokens,
                  "Tokens of each rank [512; with --routing the file's, shared out]; when the file has too few, the\n"
                  "first follow after the last")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20));
  app->add_option("--experts", flags->experts,
                  "Experts in all [256; with --routing the file's largest id + 1]")
      ->check(CLI::Range(1, limits::experts));
  app->add_option("--topk", flags->topk, "Experts per token [8; with --routing the file's]")
      ->check(CLI::Range(1, limits::topk));
  app->add_option("--hidden", flags->hidden, "Elements of a token's row")
      ->check(CLI::Range(8, 32768))
      ->capture_default_str();
  app->add_option("--inner", flags->inner, "Inner elements of each expert's feed-forward")
      ->check(CLI::Range(1, 32768))
      ->capture_default_str();
  app->add_option("--trace", flags->trace_dir, "Folder for the traces of the ranks, for sluice trace; CPU engine alone")->type_name("DIR");
  return {app, [flags] { return run_demo(*flags); }};
}

}  // namespace sluice::cli
