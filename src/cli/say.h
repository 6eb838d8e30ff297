// What the program tells a person, on standard error: never a result, so a message that cannot be written is lost.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace sluice::cli {

template <class... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  std::fputs(fmt::format(format, std::forward<Values>(values)...).c_str(), stderr);
}

}  // namespace sluice::cli
