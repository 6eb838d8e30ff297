#include <sluice/event.h>

#include <chrono>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "core/communicator_state.h"

namespace sluice {

void Event::wait() const {
  if (state_) state_->wait(std::chrono::milliseconds(-1));
}

bool Event::wait_for(int timeout_ms) const {
  if (timeout_ms < 0) throw ArgumentError(fmt::format("wait_for: timeout_ms = {} is negative", timeout_ms));
  return !state_ || state_->wait(std::chrono::milliseconds(timeout_ms));
}

bool Event::query() const { return wait_for(0); }

void Event::stream_wait(Stream stream) const {
  if (!state_) return;
  state_->require_own_process();
  state_->lane_event()->stream_wait(stream.handle);
}

}  // namespace sluice
