// The drawings of the page, as elements `svg`.
#pragma once

#include <string>

#include "doctor/case.h"

namespace sluice::doctor {

// Microseconds per operation; the darker the longer.
std::string heat_map(const Matrix& matrix, std::size_t operations);

// A few operations that follow each other, around the one with the median of waiting among those where there is much.
std::string time_line(const Case& all);

std::string escaped(const std::string& text);  // for HTML

}  // namespace sluice::doctor
