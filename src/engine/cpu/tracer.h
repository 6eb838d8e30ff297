// Records the operations of one lane in the ring of its rank (core/trace.h).
#pragma once

#include <cstdint>

#include "core/kernels.h"
#include "core/trace.h"
#include "engine/cpu/channel_flags.h"

namespace sluice::cpu {

// Used by whoever runs the lane. Does nothing for operations that are not traced.
class Tracer {
 public:
  explicit Tracer(const ChannelFlags& flags) : flags_(flags) {}

  void begin(const core::TraceCall& call);
  // After the kernel: when every rank sent its OPEN, and the rows that this rank exchanges with each.
  void agreed(const core::AgreeArgs& args);
  // A wait for the own data has ended.
  void data_there();
  void moved(std::int64_t began_ns, std::int64_t close_sent_ns, int workers);
  // After the wait for CLOSE.
  void closed();
  void end(const core::Report& report);
  bool on() const { return entry_ != nullptr; }

 private:
  void put(core::TraceWord word, std::int64_t value);
  void put(int peer, core::TracePeer word, std::int64_t value);

  const ChannelFlags& flags_;
  std::int64_t* entry_ = nullptr;
};

}  // namespace sluice::cpu
