#include "doctor/drawings.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "doctor/text.h"

namespace sluice::doctor {

namespace {

constexpr double cell = 56, margin = 44;
constexpr double line_width = 1000, row_height = 26, left = 60, top = 24;
constexpr std::size_t shown_operations = 6;

double waiting(const Operation& op) {
  double sum = 0;
  for (const Sample& sample : op.of) sum += (std::isnan(sample.wait) ? 0 : sample.wait) + (std::isnan(sample.closing) ? 0 : sample.closing);
  return sum;
}

// Where there is much waiting, but not the one case that is worst of all.
std::size_t typical(const Case& all) {
  std::vector<std::size_t> order(all.operations.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return waiting(all.operations[a]) > waiting(all.operations[b]); });
  return order[order.size() / 4];
}

struct Window {
  std::size_t first = 0, last = 0;
  std::int64_t begin = 0, end = 0;
  double x(std::int64_t ns) const { return left + line_width * static_cast<double>(ns - begin) / static_cast<double>(std::max<std::int64_t>(1, end - begin)); }
};

Window window_of(const Case& all) {
  Window window;
  const std::size_t count = std::min(shown_operations, all.operations.size());
  window.first = std::min(std::max<std::size_t>(typical(all), 1) - 1, all.operations.size() - count);
  window.last = window.first + count;
  for (std::size_t i = window.first; i < window.last; ++i) {
    for (const OperationTrace* op : all.operations[i].trace) {
      if (!op) continue;
      window.begin = window.begin == 0 ? op->begun_ns : std::min(window.begin, op->begun_ns);
      window.end = std::max(window.end, op->end_ns);
    }
  }
  return window;
}

std::string bar(const Window& window, std::int64_t from, std::int64_t length, double y, const char* part, const std::string& title) {
  if (length <= 0) return {};
  const double width = window.x(from + length) - window.x(from);
  return fmt::format("<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\"><title>{}: {} {}</title></rect>\n", part,
                     window.x(from), y, std::max(width, 0.3), row_height - 8, title, part, duration(static_cast<double>(length) / 1000));
}

std::string bars(const Window& window, const Operation& op, std::size_t rank) {
  const OperationTrace* const trace = op.trace[rank];
  if (!trace) return {};
  const Attribution a = attribute(*trace);
  const std::pair<const char*, std::int64_t> parts[] = {{"before", a.before}, {"wait", a.wait},       {"data", a.data},  {"scheduling", a.scheduling},
                                                        {"move", a.move},     {"closing", a.closing}, {"after", a.after}};
  const std::string title = fmt::format("rank {}, {} {}", rank, op.combine ? "combine" : "dispatch", op.number);
  std::string text;
  std::int64_t at = trace->begun_ns;
  for (const auto& [name, length] : parts) {
    text += bar(window, at, length, top + row_height * static_cast<double>(rank) + 4, name, title);
    at += length;
  }
  return text;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string heat_map(const Matrix& matrix, std::size_t operations) {
  const double size = margin + cell * static_cast<double>(matrix.size());
  double most = 0;
  for (const auto& row : matrix) most = std::max(most, row.empty() ? 0 : *std::max_element(row.begin(), row.end()));
  std::string svg = fmt::format("<svg class=\"heat\" viewBox=\"0 0 {0:.0f} {0:.0f}\" width=\"{0:.0f}\" role=\"img\" aria-label=\"who waited for whom\">\n", size);
  for (std::size_t r = 0; r < matrix.size(); ++r) {
    const double at = margin + cell * (static_cast<double>(r) + 0.5);
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">r{}</text><text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">r{}</text>\n", at,
                       margin - 8, r, margin - 8, at + 4, r);
  }
  for (std::size_t q = 0; q < matrix.size(); ++q) {
    for (std::size_t p = 0; p < matrix[q].size(); ++p) {
      const double x = margin + cell * static_cast<double>(p), y = margin + cell * static_cast<double>(q);
      const double heat = most > 0 ? matrix[q][p] / most : 0;
      const double us = matrix[q][p] / static_cast<double>(operations);
      svg += fmt::format("<rect class=\"cell\" x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"{2:.0f}\" height=\"{2:.0f}\"/><rect class=\"hot\" x=\"{0:.0f}\" y=\"{1:.0f}\" "
                         "width=\"{2:.0f}\" height=\"{2:.0f}\" fill-opacity=\"{3:.3f}\"><title>rank {4} waited {5} per operation for rank {6}</title></rect>"
                         "<text class=\"{7}\" x=\"{8:.0f}\" y=\"{9:.0f}\" text-anchor=\"middle\">{10:.0f}</text>\n",
                         x + 1, y + 1, cell - 2, heat, q, duration(us), p, heat > 0.5 ? "on" : "off", x + cell / 2, y + cell / 2 + 4, us);
    }
  }
  return svg + "</svg>\n";
}

std::string time_line(const Case& all) {
  if (all.operations.empty()) return {};
  const Window window = window_of(all);
  const double height = top + row_height * all.ranks + 20;
  std::string svg = fmt::format("<svg class=\"line\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"time line\">\n", left + line_width + 10, height);
  for (std::size_t r = 0; r < static_cast<std::size_t>(all.ranks); ++r)
    svg += fmt::format("<text x=\"0\" y=\"{:.0f}\">rank {}</text>\n", top + row_height * static_cast<double>(r) + 18, r);
  for (std::size_t i = window.first; i < window.last; ++i) {
    const Operation& op = all.operations[i];
    std::int64_t first = window.end;
    for (const OperationTrace* trace : op.trace) first = trace ? std::min(first, trace->begun_ns) : first;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"14\">{} {}</text>\n", window.x(first), op.combine ? "c" : "d", op.number);
    for (std::size_t r = 0; r < op.trace.size(); ++r) svg += bars(window, op, r);
  }
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">0</text><text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>\n", left, height - 2, left + line_width,
                     height - 2, duration(static_cast<double>(window.end - window.begin) / 1000));
  return svg + "</svg>\n";
}

}  // namespace sluice::doctor
