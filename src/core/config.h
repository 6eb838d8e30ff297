// A communicator's options, checked and resolved: defaults filled in, sizes computed, ranks compared.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <sluice/communicator.h>
#include <sluice/options.h>

#include "core/record.h"

namespace sluice::core {

struct Config {
  CommunicatorOptions options;  // engine named, arena_bytes and checks resolved
  Topology topology;
  PageLayout page;
  WindowSize size;
};

// Throws ArgumentError. `engine_bytes`: of flags in the control page. `rank` only goes into messages and
// the topology.
Config resolve(const CommunicatorOptions& options, int rank, int ranks, std::int64_t engine_bytes);

// What ranks must agree on, one "name=value" line each.
std::string agreement_of(const CommunicatorOptions& options);

// Throws ArgumentError naming the first difference between rank 0 and the lowest rank that differs.
void check_agreement(const std::vector<std::vector<std::byte>>& texts, int rank);

// The upper bound of rows in a result: packed and grouped in all, padded per expert.
std::int64_t most_rows(const CommunicatorOptions& options, const Topology& topology, Layout layout, int topk,
                       std::int64_t alignment, int rank);

}  // namespace sluice::core
