// A call's arguments, checked and resolved into sizes. What is illegal is an ArgumentError here, before
// anything is allocated or said to a peer.
#pragma once

#include <cstdint>
#include <string>

#include <sluice/combine.h>
#include <sluice/dispatch.h>

#include "core/config.h"
#include "core/record.h"
#include "core/route_state.h"
#include "core/sentences.h"

namespace sluice::core {

enum class Routing { ids, rank_mask, route };

// Of a dispatch whose rows may take what the arena has left: exact, without a capacity.
inline constexpr std::int64_t open_capacity = -1;

struct DispatchCall {
  Routing routing = Routing::ids;
  std::int64_t tokens = 0;         // T
  std::int32_t topk = 0;           // K
  std::int64_t hidden = 0;         // H
  DataType in_type = DataType::bf16, out_type = DataType::bf16;
  std::int64_t row_bytes = 0;      // as it lands
  std::int64_t row_stride = 0;     // of the caller's rows, bytes
  std::int64_t scale_count = 0;    // S
  DataType scale_type = DataType::fp32;
  std::int64_t scale_row_stride = 0, scale_stride = 0;  // of the caller's scales, bytes
  std::int64_t alignment = 1;
  std::int64_t capacity = open_capacity;
  CapacityFrom capacity_from = CapacityFrom::unknown;
  std::int64_t most = 0;           // upper bound of `capacity`
  bool checks = false;
  bool weights = false;
  Digest digest;
  bool makes_route() const { return routing != Routing::route; }
};

struct CombineCall {
  std::int64_t hidden = 0;
  DataType dtype = DataType::bf16;
  std::int64_t rows = 0;           // that the caller gives (padded: per expert)
  std::int64_t row_stride = 0;     // bytes
  std::int64_t expert_stride = 0;  // padded, bytes
  bool weights = false, values = false;
  Digest digest;
};

// `where` begins every sentence: "dispatch on rank 3 of 16".
DispatchCall check_call(const DispatchArgs& args, const Config& config, const std::string& where);
CombineCall check_call(const CombineArgs& args, const Config& config, const std::string& where);

// The part of check_call(DispatchArgs) that says where tokens go: routing, tokens and topk, and whether ids are
// checked.
void check_routing(const DispatchArgs& args, const Config& config, const std::string& where, DispatchCall& call);

}  // namespace sluice::core
