// A diagnosis as a page: one file that needs nothing else.
#pragma once

#include <string>

#include "doctor/verdict.h"

namespace sluice::doctor {

std::string html_of(const Diagnosis& diagnosis, const Traces& traces);

}  // namespace sluice::doctor
