#include "cli/routing_file.h"

#include <fmt/format.h>
#include <sluice/limits.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace sluice::cli {
namespace {

struct GzClose {
  void operator()(gzFile_s* file) const { gzclose(file); }
};
using GzHandle = std::unique_ptr<gzFile_s, GzClose>;

// Where a parser stands, for its messages.
struct Place {
  const std::string& name;
  std::int64_t line = 0;

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}, line {}: {}", name, line, what));
  }
};

// A field as it may be shown in a message: short and printable.
std::string shown(std::string_view field) {
  std::string text(field.substr(0, 40));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

void split(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  for (;;) {
    const auto comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return;
    line.remove_prefix(comma + 1);
  }
}

std::int64_t parse_integer(std::string_view field, const Place& place, const char* what) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc() || end != field.data() + field.size()) {
    place.fail(fmt::format("{} \"{}\" is not a whole number", what, shown(field)));
  }
  return value;
}

float parse_weight(std::string_view field, const Place& place) {
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  const bool number = error != std::errc::invalid_argument && end == field.data() + field.size();
  // from_chars does not say whether it is too small, and so 0, or too large.
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(field).c_str(), nullptr);
  const auto weight = static_cast<float>(value);
  if (!number || !std::isfinite(weight)) {
    place.fail(fmt::format("weight \"{}\" is not a finite number", shown(field)));
  }
  return weight;
}

// K from the number of columns, which every later line must have too.
int topk_of(std::size_t columns, const Place& place) {
  const std::size_t k = (columns - 1) / 2;
  if (columns % 2 == 0 || k < 1 || k > static_cast<std::size_t>(limits::topk)) {
    place.fail(fmt::format("{} columns; expected token, K experts and K weights with 1 <= K <= {}", columns,
                           limits::topk));
  }
  return static_cast<int>(k);
}

void check_header(const std::vector<std::string_view>& fields, const Place& place) {
  const int k = topk_of(fields.size(), place);
  for (int j = 0; j < k; ++j) {
    if (fields[1 + j] != fmt::format("expert{}", j) || fields[1 + k + j] != fmt::format("weight{}", j)) {
      place.fail("the header must be token,expert0,..,weight0,..");
    }
  }
}

void parse_token(const std::vector<std::string_view>& fields, Decisions& out, const Place& place) {
  const std::int64_t expected = out.tokens();
  const std::int64_t token = parse_integer(fields[0], place, "token");
  if (token != expected) place.fail(fmt::format("token {} where {} is due", token, expected));
  if (token >= limits::max_tokens) place.fail(fmt::format("more than {} tokens", limits::max_tokens));
  const auto begin = out.ids.size();
  for (int j = 0; j < out.topk; ++j) {
    const std::int64_t id = parse_integer(fields[1 + j], place, "expert");
    if (id < -1 || id >= limits::experts) {
      place.fail(fmt::format("expert {} is not in [0, {}), nor -1 for none", id, limits::experts));
    }
    const auto same = std::find(out.ids.begin() + static_cast<std::ptrdiff_t>(begin), out.ids.end(),
                                static_cast<std::int32_t>(id));
    if (id >= 0 && same != out.ids.end()) place.fail(fmt::format("expert {} twice", id));
    out.ids.push_back(static_cast<std::int32_t>(id));
  }
  for (int j = 0; j < out.topk; ++j) out.weights.push_back(parse_weight(fields[1 + out.topk + j], place));
}

// The whole file, unpacked. zlib passes a file through that is not compressed.
std::string read_all(const std::string& path) {
  const GzHandle file(gzopen(path.c_str(), "rb"));
  if (!file) throw FileError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::string text;
  std::vector<char> part(std::size_t{1} << 16);
  for (;;) {
    const int got = gzread(file.get(), part.data(), static_cast<unsigned>(part.size()));
    if (got < 0) {
      int code = 0;
      const char* why = gzerror(file.get(), &code);
      throw FileError(
          fmt::format("{}: cannot be read: {}", path, code == Z_ERRNO ? std::strerror(errno) : why));
    }
    if (got == 0) break;
    if (text.size() + static_cast<std::size_t>(got) > kRoutingFileBytes) {
      throw FileError(fmt::format("{}: more than {} bytes of text", path, kRoutingFileBytes));
    }
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  int code = 0;
  const char* why = gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END) throw FileError(fmt::format("{}: cannot be read: {}", path, why));
  return text;
}

std::string header_of(int topk) {
  std::string line = "token";
  for (int j = 0; j < topk; ++j) line += fmt::format(",expert{}", j);
  for (int j = 0; j < topk; ++j) line += fmt::format(",weight{}", j);
  return line + "\n";
}

}  // namespace

Decisions parse_routing(std::string_view text, const std::string& name) {
  Decisions out;
  Place place{name};
  std::vector<std::string_view> fields;
  std::size_t columns = 0;
  while (!text.empty()) {
    ++place.line;
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.size() > kRoutingLineBytes) place.fail(fmt::format("longer than {} bytes", kRoutingLineBytes));
    if (line.empty()) place.fail("empty");
    split(line, fields);
    if (columns == 0) {
      out.topk = topk_of(fields.size(), place);
      columns = fields.size();
      if (fields[0] == "token") {
        check_header(fields, place);
        continue;
      }
    }
    if (fields.size() != columns)
      place.fail(fmt::format("{} columns, but {} before", fields.size(), columns));
    parse_token(fields, out, place);
  }
  if (out.tokens() == 0) throw FileError(fmt::format("{}: no token in it", name));
  return out;
}

Decisions read_routing_file(const std::string& path) { return parse_routing(read_all(path), path); }

void write_routing_file(const std::string& path, const Decisions& decisions) {
  std::string text = header_of(decisions.topk);
  const auto k = static_cast<std::size_t>(decisions.topk);
  for (std::int64_t t = 0; t < decisions.tokens(); ++t) {
    const auto at = static_cast<std::size_t>(t) * k;
    text += fmt::format("{}", t);
    for (std::size_t j = 0; j < k; ++j) text += fmt::format(",{}", decisions.ids[at + j]);
    for (std::size_t j = 0; j < k; ++j) text += fmt::format(",{:.6g}", decisions.weights[at + j]);
    text += '\n';
  }
  if (path == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
      throw FileError(fmt::format("standard output: cannot be written: {}", std::strerror(errno)));
    }
    return;
  }
  // "wbT" writes plain text through the same calls.
  GzHandle file(gzopen(path.c_str(), path.ends_with(".gz") ? "wb" : "wbT"));
  if (!file) throw FileError(fmt::format("{}: cannot be opened for writing: {}", path, std::strerror(errno)));
  constexpr std::size_t kPart = std::size_t{1} << 24;
  for (std::size_t done = 0; done < text.size(); done += kPart) {
    const auto bytes = static_cast<unsigned>(std::min(kPart, text.size() - done));
    if (gzwrite(file.get(), text.data() + done, bytes) != static_cast<int>(bytes)) {
      throw FileError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
    }
  }
  if (gzclose(file.release()) != Z_OK)
    throw FileError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

}  // namespace sluice::cli
