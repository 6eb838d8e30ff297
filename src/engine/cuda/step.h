// What every kernel gets besides its own arguments.
#pragma once

#include "core/script.h"
#include "engine/cuda/shared.h"

namespace sluice::cuda {

struct StepContext {
  static constexpr std::int32_t same_phase = -1;

  DeviceChannel* channel = nullptr;
  SharedChannel* const* shared = nullptr;  // [R], in device memory
  core::Report* report = nullptr;
  core::Tail tail;
  core::OperationKind kind = core::OperationKind::none;
  core::Stamp stamp = core::Stamp::none;
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::int32_t index = 0;           // of the step in its script
  std::int32_t phase = same_phase;  // that begins when the kernel has ended
  bool awaited = false;             // the first kernel behind an await
  std::uint64_t point = 0;          // of the lane, which the host is told of when the kernel has ended; 0: none
  std::int64_t operation = 0;       // running number of the script on its channel, as its host counts

  // Of a kernel that is not the last of its step.
  StepContext inner() const {
    StepContext context = *this;
    context.tail = {};
    context.stamp = core::Stamp::none;
    context.phase = same_phase;
    context.point = 0;
    return context;
  }
};

}  // namespace sluice::cuda
