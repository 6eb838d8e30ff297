// Random configurations with everything mixed, for the tests that want many.
#pragma once

#include <cstdint>
#include <memory>

#include "drive.h"

namespace conformance {

struct Mixture {
  Job job;
  Round round;
  bool reuse = false;       // dispatch once more with the route
  bool fresh_data = false;  // and with other rows
  std::unique_ptr<Job> second;
  int workers = 0;
};

// The same for the same seed.
Mixture mix_up(int ranks, std::uint64_t seed);

// Options of a communicator in which it can run.
sluice::CommunicatorOptions options_for(const Mixture& mixture, const std::string& engine);

}  // namespace conformance
