// The rules of the doctor (docs/doctor.md), a function each: it says why it holds, or nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/case.h"

namespace sluice::doctor {

enum class Class : std::uint8_t { healthy, slow_rank, imbalance, slow_link, host_late, host_copies, slow_drain };
inline constexpr Class all_classes[] = {Class::healthy, Class::slow_rank, Class::imbalance, Class::slow_link,
                                        Class::host_late, Class::host_copies, Class::slow_drain};
const char* name_of(Class verdict);

// At which of its two meetings an operation waits.
enum class Meeting : std::uint8_t { open, close };

// The rank that the others wait for.
struct Suspect {
  Meeting meeting = Meeting::open;
  int rank = 0;
  double share = 0;       // of the waiting of all for this meeting
  double wait_share = 0;  // of the time of the other ranks
  double wait_us = 0;     // of each other rank, per operation
  std::vector<const Operation*> affected;  // where most of a wait that matters was for it
  double late_us = 0;     // median of its lateness in them
};

// Somebody, if the waiting at this meeting matters and is for one rank rather than for all in turn.
std::optional<Suspect> suspect(const Case& all, Meeting meeting);

// In the order in which they are tried: a copy or many rows explain a late call better than that its rank computed.
std::optional<std::string> host_copies(const Case& all, const Suspect& suspect);
std::optional<std::string> imbalance(const Case& all, const Suspect& suspect);
// Meeting::open
std::optional<std::string> slow_rank(const Case& all, const Suspect& suspect);
std::optional<std::string> host_late(const Case& all, const Suspect& suspect);
// Meeting::close
std::optional<std::string> slow_link(const Case& all, const Suspect& suspect);
std::optional<std::string> slow_drain(const Case& all, const Suspect& suspect);

// Nobody is to blame, but operations beside copies take longer.
std::optional<std::string> copies_slow_everybody(const Case& all);

}  // namespace sluice::doctor
