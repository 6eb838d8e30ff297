// `sluice doctor DIR`: from the traces of a run to who was waited for, and why.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>

#include "cli/json.h"
#include "cli/routing_file.h"
#include "cli/usage.h"
#include "doctor/html.h"
#include "doctor/text.h"

namespace sluice::cli {
namespace {

struct DoctorFlags {
  std::string folder;
  std::string communicator;
  std::string html;
  std::vector<std::string> fail_on;
  bool json = false;
};

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json parts_record(const std::vector<doctor::Parts>& kinds) {
  Json list = Json::array();
  for (const doctor::Parts& kind : kinds) {
    Json record{{"op", kind.combine ? "combine" : "dispatch"}, {"operations", kind.operations}, {"total_us", number(kind.total)}};
    for (std::size_t i = 0; i < kind.of.size(); ++i) record[fmt::format("{}_us", doctor::part_names[i])] = number(kind.of[i]);
    list.push_back(std::move(record));
  }
  return list;
}

Json doctor_record(const doctor::Diagnosis& found, const doctor::Traces& traces) {
  Json record = make_record("doctor");
  record["class"] = doctor::name_of(found.verdict);
  record["rank"] = found.rank ? Json(*found.rank) : Json(nullptr);
  record["wait_share"] = number(found.wait_share);
  record["blame_share"] = number(found.blame_share);
  record["late_us_p50"] = number(found.late_us_p50);
  record["operations"] = found.operations;
  record["matrix"] = found.matrix;
  record["scope"] = found.scope;
  record["ranks"] = found.ranks;
  record["late_operations"] = found.late_operations;
  record["closing_share"] = number(found.closing_share);
  record["closing_matrix"] = found.closings;
  record["parts"] = parts_record(found.parts);
  record["communicator"] = traces.communicator;
  record["missing_ranks"] = traces.missing;
  record["not_ended"] = found.standing;
  record["text"] = doctor::headline(found);
  return record;
}

void write_page(const std::string& path, const std::string& page) {
  std::ofstream file(path, std::ios::binary);
  file << page;
  if (!file.flush()) throw FileError(fmt::format("{}: cannot be written", path));
}

int run_doctor(const DoctorFlags& flags) {
  const doctor::Traces traces = doctor::load_traces(flags.folder, flags.communicator);
  const doctor::Diagnosis found = doctor::diagnose(traces);
  if (!flags.html.empty()) write_page(flags.html, doctor::html_of(found, traces));
  if (flags.json) {
    print_line(doctor_record(found, traces));
  } else {
    fmt::print("{}", doctor::text_of(found));
  }
  const bool fails = std::count(flags.fail_on.begin(), flags.fail_on.end(), doctor::name_of(found.verdict)) > 0;
  return fails ? exit_failed : exit_done;
}

}  // namespace

Command add_doctor(CLI::App& program) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* app = program.add_subcommand("doctor", "From the traces of a run (SLUICE_TRACE): which rank was waited for, and why");
  std::vector<std::string> classes;
  for (const doctor::Class verdict : doctor::all_classes) classes.emplace_back(doctor::name_of(verdict));
  app->add_option("DIR", flags->folder, "The folder that SLUICE_TRACE or trace_dir named")->required();
  app->add_option("--communicator", flags->communicator,
                  "Which one, where the folder holds several [the one with the most time in operations]");
  app->add_option("--html", flags->html, "Also write a page with the matrix and a time line to this file");
  app->add_option("--fail-on", flags->fail_on, "Exit with 1 when this is the verdict; may be given several times")
      ->check(CLI::IsMember(classes).description(""))
      ->type_name(fmt::format("{}", fmt::join(classes, "|")))
      ->expected(1)
      ->take_all();
  app->add_flag("--json", flags->json, "Print one JSON object");
  return {app, [flags] { return run_doctor(*flags); }};
}

}  // namespace sluice::cli
