// `sluice routing`: writes synthetic router decisions.
#include <fmt/format.h>
#include <sluice/limits.h>

#include <algorithm>
#include <memory>

#include "cli/json.h"
#include "cli/routing_file.h"
#include "cli/routing_model.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

constexpr int report_ranks = 8;

struct RoutingFlags {
  std::string like = "uniform";
  std::int64_t tokens = 4096;
  int experts = 0;
  int topk = 0;
  std::uint64_t seed = 1;
  std::string output;
  bool json = false;
};

Json describe(const RoutingFlags& flags, const Decisions& decisions) {
  Json record = make_record("routing");
  record["like"] = flags.like;
  record["tokens"] = decisions.tokens();
  record["experts"] = flags.experts;
  record["topk"] = flags.topk;
  record["seed"] = flags.seed;
  record["file"] = flags.output;
  const Skew experts = skew_of(rows_per_expert(decisions, flags.experts));
  record["expert_max_over_mean"] = experts.max_over_mean;
  record["entropy_bits"] = experts.entropy_bits;
  const auto split = split_experts(flags.experts, report_ranks);
  record["rank8_rows_max_over_mean"] = skew_of(rows_per_rank(decisions, split)).max_over_mean;
  return record;
}

int run_routing(RoutingFlags flags) {
  RoutingModel model;
  if (!parse_routing_model(flags.like, model)) {
    const std::string wrong = wrong_skew(flags.like);
    if (!wrong.empty()) throw UsageError(fmt::format("--like {}: {}", flags.like, wrong));
    const std::string near = nearest(flags.like, routing_model_names("1"));
    throw UsageError(fmt::format("--like {} is none of {}{}", flags.like,
                                 fmt::join(routing_model_names(), ", "),
                                 near.empty() ? "" : "; did you mean --like " + near + "?"));
  }
  if (flags.json && flags.output == "-")
    throw UsageError("-o - and --json both want standard output; give -o a file name");
  if (flags.experts == 0) flags.experts = natural_experts(model);
  if (flags.topk == 0) flags.topk = std::min(natural_topk(model), flags.experts);
  require_enough_experts(flags.experts, flags.topk);
  const Decisions decisions = generate(model, flags.experts, flags.topk, flags.tokens, flags.seed);
  write_routing_file(flags.output, decisions);
  const Json record = describe(flags, decisions);
  if (flags.json) {
    print_line(record);
  } else if (flags.output != "-") {
    fmt::print("{}: {} tokens, top-{} of {} experts, like {}\n", flags.output, decisions.tokens(), flags.topk,
               flags.experts, flags.like);
    fmt::print(
        "busiest expert {:.2f} x the mean, entropy {:.3f} bits, fullest of {} ranks {:.2f} x the mean\n",
        record["expert_max_over_mean"].get<double>(), record["entropy_bits"].get<double>(), report_ranks,
        record["rank8_rows_max_over_mean"].get<double>());
  }
  return exit_done;
}

}  // namespace

Command add_routing(CLI::App& program) {
  auto flags = std::make_shared<RoutingFlags>();
  CLI::App* app =
      program.add_subcommand("routing", "Write seeded synthetic router decisions of a stated skew");
  app->add_option("--like", flags->like,
                  fmt::format("{}; S from 0 to 100; the last three fitted to published figures of skew",
                              fmt::join(routing_model_names(), "|")))
      ->capture_default_str();
  app->add_option("--tokens", flags->tokens, "Tokens")
      ->check(CLI::Range(std::int64_t{1}, limits::max_tokens))
      ->capture_default_str();
  app->add_option("--experts", flags->experts, "Experts in all [the model's, else 256]")
      ->check(CLI::Range(1, limits::experts));
  app->add_option("--topk", flags->topk, "Experts per token [the model's, else 8]")
      ->check(CLI::Range(1, limits::topk));
  add_seed(*app, flags->seed, "Same seed, same file");
  app->add_option("-o,--output", flags->output, "File to write: .csv, .csv.gz, or - for standard output")
      ->required();
  app->add_flag("--json", flags->json, "One JSON object about the file on standard output");
  return {app, [flags] { return run_routing(*flags); }};
}

}  // namespace sluice::cli
