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
#include <new>
#include <vector>

namespace sluice::cli {
namespace {

struct GzClose {
  void operator()(gzFile_s* file) const { gzclose(file); }
};
using GzHandle = std::unique_ptr<gzFile_s, GzClose>;
struct FileClose {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<std::FILE, FileClose>;
struct InflateEnd {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

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

[[noreturn]] void fail_read(const std::string& path, const std::string& why) {
  throw FileError(fmt::format("{}: cannot be read: {}", path, why));
}

void append(std::string& text, const char* part, std::size_t bytes, const std::string& path) {
  if (text.size() + bytes > most_file_bytes)
    throw FileError(fmt::format("{}: more than {} bytes of text", path, most_file_bytes));
  text.append(part, bytes);
}

// The bytes as they lie there.
std::string read_all(const std::string& path) {
  const FileHandle file(std::fopen(path.c_str(), "rbe"));
  if (!file) throw FileError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::string bytes;
  std::vector<char> part(std::size_t{1} << 16);
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), file.get()))
    append(bytes, part.data(), got, path);
  if (std::ferror(file.get()) != 0) fail_read(path, std::strerror(errno));
  return bytes;
}

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

// One gzip stream behind another, to the last byte: gzread would pass over what is none.
std::string unpack(const std::string& packed, const std::string& path) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, InflateEnd> end(&stream);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string text;
  std::vector<char> part(std::size_t{1} << 16);
  for (;;) {
    stream.next_out = reinterpret_cast<Bytef*>(part.data());
    stream.avail_out = static_cast<uInt>(part.size());
    const int code = inflate(&stream, Z_NO_FLUSH);
    append(text, part.data(), part.size() - stream.avail_out, path);
    if (code == Z_STREAM_END) {
      if (stream.avail_in == 0) return text;
      const std::size_t at = packed.size() - stream.avail_in;
      if (!is_gzip(std::string_view(packed).substr(at)))
        fail_read(path, fmt::format("its gzip data end at byte {} of {}, other bytes follow", at, packed.size()));
      inflateReset(&stream);
    } else if (code == Z_BUF_ERROR) {
      fail_read(path, "its gzip data are cut off");
    } else if (code != Z_OK) {
      fail_read(path, stream.msg != nullptr ? stream.msg : "its gzip data are damaged");
    }
  }
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
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";  // of some spreadsheets
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  while (!text.empty()) {
    ++place.line;
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.size() > most_line_bytes) place.fail(fmt::format("longer than {} bytes", most_line_bytes));
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

Decisions read_routing_file(const std::string& path) {
  std::string text = read_all(path);
  if (is_gzip(text)) text = unpack(text, path);
  return parse_routing(text, path);
}

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
  constexpr std::size_t part_bytes = std::size_t{1} << 24;
  for (std::size_t done = 0; done < text.size(); done += part_bytes) {
    const auto bytes = static_cast<unsigned>(std::min(part_bytes, text.size() - done));
    if (gzwrite(file.get(), text.data() + done, bytes) != static_cast<int>(bytes)) {
      throw FileError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
    }
  }
  if (gzclose(file.release()) != Z_OK)
    throw FileError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

}  // namespace sluice::cli
