#include "cli/json.h"

#include <sluice/version.h>

#include <cstdio>

namespace sluice::cli {
namespace {

std::string& command_text() {
  static std::string text;
  return text;
}

std::string quoted(std::string word) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,.:/@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

void remember_command(int argc, const char* const* argv) {
  std::string text = "sluice";
  for (int i = 1; i < argc; ++i) text += " " + quoted(argv[i]);
  command_text() = text;
}

const std::string& command_line() { return command_text(); }

Json make_record(const char* record) {
  Json object;
  object["record"] = record;
  object["version"] = version();
  object["command"] = command_line();
  return object;
}

void print_line(const Json& object) {
  // A file name or a message may hold any bytes: what is not UTF-8 is replaced, never thrown at.
  const std::string line = object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

Json error_record(const Failure& failure) {
  Json object = make_record("error");
  object["kind"] = failure.kind;
  object["message"] = failure.message;
  object["rank"] = failure.rank < 0 ? Json(nullptr) : Json(failure.rank);
  return object;
}

}  // namespace sluice::cli
