// A diagnosis for people.
#pragma once

#include <string>

#include "doctor/verdict.h"

namespace sluice::doctor {

// One line, without its end. Names the rank as `rank N`.
std::string headline(const Diagnosis& diagnosis);

// What to do about it.
std::string advice(const Diagnosis& diagnosis);

// The headline, where ranks stand, the matrix, the parts of the time, what to do, and the notes.
std::string text_of(const Diagnosis& diagnosis);

std::string duration(double us);  // "870 us", "2.1 ms", "3.2 s"

}  // namespace sluice::doctor
