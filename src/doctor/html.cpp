#include "doctor/html.h"

#include <fmt/format.h>

#include "doctor/drawings.h"
#include "doctor/text.h"

namespace sluice::doctor {

namespace {

// The hot colour is one that a test looks for in a picture of the page.
constexpr const char* style = R"(
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --faint: #eef0f2; --hot: #c62828;
  --before: #9e9e9e; --wait: #c62828; --data: #8e6bbf; --scheduling: #d9b44a; --move: #2e7d6b; --closing: #7fb8a8; --after: #5b7fa6; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181c; --ink: #e4e7ea; --faint: #262b31; --hot: #ef5350; --wait: #ef5350; --move: #4db6a0; --closing: #35695e; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.25em; font-weight: 600; } h2 { font-size: 1em; margin-top: 2em; }
table { border-collapse: collapse; } th, td { padding: .2em .8em; text-align: right; border-bottom: 1px solid var(--faint); }
svg { display: block; max-width: 100%; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.cell { fill: var(--faint); } .hot { fill: var(--hot); } svg text.on { fill: #ffffff; }
.maps { display: flex; flex-wrap: wrap; gap: 3em; }
.key span { display: inline-block; margin-right: 1.2em; } .key i { display: inline-block; width: .9em; height: .9em; margin-right: .4em; }
)";


std::string part_styles() {
  std::string css;
  for (const char* part : part_names) css += fmt::format(".{0} {{ fill: var(--{0}); background: var(--{0}); }}\n", part);
  return css;
}

std::string key() {
  std::string html = "<p class=\"key\">";
  for (const char* part : part_names) html += fmt::format("<span><i class=\"{0}\"></i>{0}</span>", part);
  return html + "</p>\n";
}

std::string parts_table(const std::vector<Parts>& parts) {
  std::string html = "<table><tr><th></th><th>n</th><th>total</th>";
  for (const char* part : part_names) html += fmt::format("<th>{}</th>", part);
  html += "</tr>\n";
  for (const Parts& p : parts) {
    html += fmt::format("<tr><th>{}</th><td>{}</td><td>{:.1f}</td>", p.combine ? "combine" : "dispatch", p.operations, p.total);
    for (const double us : p.of) html += fmt::format("<td>{:.1f}</td>", us);
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::string list(const std::vector<std::string>& sentences) {
  if (sentences.empty()) return {};
  std::string html = "<ul>\n";
  for (const std::string& sentence : sentences) html += fmt::format("<li>{}.</li>\n", escaped(sentence));
  return html + "</ul>\n";
}

std::string maps(const Diagnosis& diagnosis) {
  return fmt::format(
      "<div class=\"maps\"><div><h2>Waited for the last to enter</h2>{}</div><div><h2>Waited for the rows of others</h2>{}</div></div>\n"
      "<p>Microseconds per operation. Row: who waited; column: for whom.</p>\n",
      heat_map(diagnosis.matrix, diagnosis.operations), heat_map(diagnosis.closings, diagnosis.operations));
}

}  // namespace

std::string html_of(const Diagnosis& diagnosis, const Traces& traces) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
      "<title>Sluice doctor: {}</title>\n<style>{}{}</style></head>\n<body>\n",
      name_of(diagnosis.verdict), style, part_styles());
  html += fmt::format("<h1>{}</h1>\n<p>{}</p>\n", escaped(headline(diagnosis)), escaped(advice(diagnosis)));
  html += list(diagnosis.standing);
  html += maps(diagnosis);
  html += "<h2>Parts of the time</h2>\n<p>Microseconds, each of the rank where it is longest, median.</p>\n" + parts_table(diagnosis.parts);
  html += "<h2>Some operations</h2>\n" + key() + time_line(make_case(traces));
  html += "<p>d: dispatch, c: combine, with their number on their channel.</p>\n";
  html += list(diagnosis.notes);
  html += fmt::format("<p>Communicator {}, {} ranks.</p>\n", escaped(traces.communicator), diagnosis.ranks);
  return html + "</body></html>\n";
}

}  // namespace sluice::doctor
