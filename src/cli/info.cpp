// `sluice info`: what this library can do on this machine, and what memory a communicator takes.
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <hwloc.h>
#include <sluice/sluice.h>

#include <algorithm>
#include <memory>

#include "cli/bench_case.h"
#include "cli/gpu.h"
#include "cli/json.h"
#include "cli/machine.h"
#include "cli/routing_model.h"
#include "cli/usage.h"

namespace sluice::cli {
namespace {

struct InfoFlags {
  BenchFlags bench;
  bool size = false;
  std::string given;  // the first flag of a shape
};

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json engines_record() {
  Json list = Json::array();
  for (const EngineInfo& engine : engines()) {
    list.push_back({{"name", engine.name},
                    {"usable", engine.usable},
                    {"reason", or_null(engine.reason)},
                    {"await_form", or_null(engine.await_form)},
                    {"detail", or_null(engine.detail)}});
  }
  return list;
}

Json environment_record() {
  Json list = Json::array();
  for (const EnvironmentVariable& variable : environment()) {
    list.push_back({{"name", variable.name},
                    {"value", variable.value ? Json(*variable.value) : Json(nullptr)},
                    {"default", variable.default_value},
                    {"meaning", variable.meaning}});
  }
  return list;
}

Json limits_record() {
  return {{"ranks_per_node", limits::ranks_per_node},
          {"ranks", limits::ranks},
          {"topk", limits::topk},
          {"experts", limits::experts},
          {"channels", limits::channels},
          {"row_bytes", limits::row_bytes},
          {"row_bytes_multiple", limits::row_bytes_multiple},
          {"scale_bytes", limits::scale_bytes},
          {"scale_bytes_multiple", limits::scale_bytes_multiple},
          {"max_tokens", limits::max_tokens},
          {"alignment", limits::alignment},
          {"num_sms", limits::num_sms},
          {"workers", limits::workers},
          {"deadline_ms", limits::deadline_ms},
          {"elements", limits::elements},
          {"arena_bytes", limits::arena_bytes}};
}

Json gpus_record(const Gpus& here) {
  Json list = Json::array();
  for (const GpuFacts& gpu : here.gpus) {
    list.push_back({{"index", list.size()},
                    {"name", gpu.name},
                    {"pci", gpu.pci},
                    {"compute", gpu.compute},
                    {"sms", gpu.sms},
                    {"memory_bytes", gpu.memory_bytes},
                    {"free_bytes", gpu.free_bytes < 0 ? Json(nullptr) : Json(gpu.free_bytes)}});
  }
  return list;
}

Json links_record(const Gpus& here) {
  Json list = Json::array();
  for (const GpuLink& link : here.links)
    list.push_back({{"from", link.from}, {"to", link.to}, {"peer_access", link.reaches}});
  return list;
}

Json versions_record(const Gpus& here) {
  const unsigned hwloc = hwloc_get_api_version();
  return {
      {"sluice", version()},
      {"headers", fmt::format("{}.{}.{}", SLUICE_VERSION_MAJOR, SLUICE_VERSION_MINOR, SLUICE_VERSION_PATCH)},
      {"compiler", __VERSION__},
      {"libc", gnu_get_libc_version()},
      {"hwloc", fmt::format("{}.{}.{}", hwloc >> 16, (hwloc >> 8) & 255, hwloc & 255)},
      {"cuda", or_null(here.cuda)},
      {"driver", or_null(here.driver)},
      {"driver_needed", or_null(here.driver_needed)}};
}

Json transports_record() {
  Json list = Json::array();
  list.push_back(
      {{"name", "shared memory"}, {"usable", true}, {"reason", nullptr}, {"reach", "ranks of one machine"}});
  return list;
}

Json info_record() {
  Json record = make_record("info");
  record["engines"] = engines_record();
  const Gpus here = gpus_here();
  record["gpus"] = gpus_record(here);
  record["links"] = links_record(here);
  record["transports"] = transports_record();
  record["limits"] = limits_record();
  record["environment"] = environment_record();
  record["versions"] = versions_record(here);
  record["await_form"] = nullptr;
  for (const EngineInfo& engine : engines()) {
    if (engine.usable && record["await_form"].is_null()) record["await_form"] = engine.await_form;
  }
  const Machine machine = this_machine();
  record["machine"] = {
      {"cpu", machine.cpu}, {"cores", machine.cores}, {"numa_nodes", machine.numa_nodes}, {"os", machine.os}};
  return record;
}

// A variable may hold anything: what could steer a terminal is shown as '?', as in the library's errors.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  return text;
}

std::string text_of(const Json& value) {
  return value.is_null() ? "-" : value.is_string() ? printable(value.get<std::string>()) : value.dump();
}

void print_gpus(const Json& record) {
  fmt::print("\nGPUs\n");
  if (record["gpus"].empty()) fmt::print("  none\n");
  constexpr double gib = 1 << 30;
  for (const auto& gpu : record["gpus"]) {
    const Json& free = gpu["free_bytes"];
    fmt::print("  {} {:<20} {}, compute capability {}, {} SMs, {:.0f} GiB{}\n", text_of(gpu["index"]), text_of(gpu["name"]),
               text_of(gpu["pci"]), text_of(gpu["compute"]), text_of(gpu["sms"]), gpu["memory_bytes"].get<double>() / gib,
               free.is_null() ? "" : fmt::format(", {:.0f} free", free.get<double>() / gib));
  }
  std::string apart;
  for (const auto& link : record["links"]) {
    if (!link["peer_access"].get<bool>()) apart += fmt::format(" {}-{}", text_of(link["from"]), text_of(link["to"]));
  }
  if (!record["links"].empty())
    fmt::print("  {}\n", apart.empty() ? "all reach each other's memory" : "these do not reach the memory of the other:" + apart);
}

void print_info(const Json& record) {
  fmt::print("Sluice {}\n\nMachine\n", text_of(record["version"]));
  for (const auto& [name, value] : record["machine"].items())
    fmt::print("  {:<22} {}\n", name, text_of(value));
  fmt::print("\nEngines\n");
  for (const auto& engine : record["engines"]) {
    const bool usable = engine["usable"];
    fmt::print("  {:<22} {}\n", text_of(engine["name"]),
               usable ? fmt::format("usable; a waiting lane {}; {}", text_of(engine["await_form"]),
                                    text_of(engine["detail"]))
                      : "not usable: " + text_of(engine["reason"]));
  }
  print_gpus(record);
  fmt::print("\nTransports\n");
  for (const auto& transport : record["transports"]) {
    fmt::print("  {:<22} {}{}\n", text_of(transport["name"]), text_of(transport["reach"]),
               transport["usable"].get<bool>() ? "" : "; " + text_of(transport["reason"]));
  }
  fmt::print("\nLimits\n");
  for (const auto& [name, value] : record["limits"].items())
    fmt::print("  {:<22} {}\n", name, text_of(value));
  fmt::print("\nEnvironment variables\n");
  for (const auto& variable : record["environment"]) {
    fmt::print("  {} = {} (default: {})\n      {}\n", text_of(variable["name"]),
               variable["value"].is_null() ? "not set" : text_of(variable["value"]),
               text_of(variable["default"]), text_of(variable["meaning"]));
  }
  fmt::print("\nVersions\n");
  for (const auto& [name, value] : record["versions"].items())
    fmt::print("  {:<22} {}\n", name, text_of(value));
}

void print_size(const Json& record) {
  fmt::print("Memory of each rank's communicator, bytes:\n");
  for (const auto& [name, value] : record["terms"].items())
    fmt::print("  {:<34} {:>16}\n", name, value.get<std::int64_t>());
  fmt::print("  {:<34} {:>16}\n  {:<34} {:>16}\n", "window", record["window_bytes"].get<std::int64_t>(),
             "of which arena", record["arena_bytes"].get<std::int64_t>());
}

// Decisions are drawn to see how full the fullest expert gets, an expert after the other: more would take long.
void require_quick_decisions(const BenchFlags& flags, int ranks, std::int64_t tokens) {
  constexpr std::int64_t most_draws = std::int64_t{1} << 30;
  RoutingModel model;
  if (!parse_routing_model(flags.shape.routing, model)) return;
  const int experts = flags.shape.experts > 0 ? flags.shape.experts : natural_experts(model);
  if (ranks * tokens * experts <= most_draws) return;
  throw UsageError(fmt::format("--layout padded without --capacity has room for what the fullest expert gets, and to find that out "
                               "for {} x {} tokens and {} experts takes too long; give a --capacity", ranks, tokens, experts));
}

int run_size(const BenchFlags& flags) {
  const int ranks = flags.common.ranks > 0 ? flags.common.ranks : flags.common.default_ranks;
  for (const std::int64_t tokens : flags.shape.tokens) {
    // Only a capacity that bench would choose depends on the decisions.
    const bool decide = flags.shape.layout == Layout::padded && flags.shape.capacity < 0;
    if (decide) require_quick_decisions(flags, ranks, tokens);
    BenchCase bench = make_case(flags, Op::dispatch, ranks, decide ? tokens : 0);
    bench.tokens = tokens;
    const WindowSize size = Communicator::size_of(options_of(bench), ranks);
    Json record = make_record("size");
    record["window_bytes"] = size.window_bytes;
    record["arena_bytes"] = size.arena_bytes;
    record["terms"] = Json::object();
    for (const SizeTerm& term : size.terms) record["terms"][term.name] = term.bytes;
    flags.common.json ? print_line(record) : print_size(record);
  }
  return exit_done;
}

int run_info(const InfoFlags& flags) {
  if (!flags.size && !flags.given.empty())
    throw UsageError(fmt::format("{} says what --size is to tell of; without --size it has no effect", flags.given));
  if (flags.size) return run_size(flags.bench);
  const Json record = info_record();
  flags.bench.common.json ? print_line(record) : print_info(record);
  return exit_done;
}

}  // namespace

Command add_info(CLI::App& program) {
  auto flags = std::make_shared<InfoFlags>();
  CLI::App* app = program.add_subcommand(
      "info", "Engines, limits and environment of this machine; with --size the memory of a communicator");
  app->add_flag("--size", flags->size,
                "Print the memory that a communicator of the shape of these flags takes on each rank. The other flags "
                "of bench are taken too, so that its command line fits, and change nothing");
  add_bench_flags(*app, flags->bench);
  app->get_option("--ranks")->description(fmt::format("Number of ranks [{}]", flags->bench.common.default_ranks));
  // Taken, so that a bench's command line fits, but without effect on the size.
  for (const char* name : {"--launch", "--counts", "--op", "--cached", "--quantise", "--num-sms", "--method",
                           "--workers", "--overlap", "--late", "--late-side", "--trace", "--iters", "--warmup", "--deadline-ms"})
    app->get_option(name)->group("");
  return {app, [flags, app] {
            for (const CLI::Option* option : app->get_options()) {
              const std::string name = option->get_name();
              const bool of_info = name == "--size" || name == "--json" || name == "--help";
              if (!of_info && option->count() > 0 && flags->given.empty()) flags->given = name;
            }
            return run_info(*flags);
          }};
}

}  // namespace sluice::cli
