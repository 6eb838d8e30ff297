// A point in time up to which a wait may last, or none.
#pragma once

#include <algorithm>
#include <chrono>

namespace sluice::boot {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // 0 = without end, as in MeetOptions.
  static Deadline in_ms(int timeout_ms) {
    Deadline deadline;
    deadline.timeout_ms_ = timeout_ms;
    deadline.end_ = timeout_ms > 0 ? Clock::now() + std::chrono::milliseconds(timeout_ms) : Clock::time_point::max();
    return deadline;
  }

  bool endless() const { return end_ == Clock::time_point::max(); }
  bool passed() const { return !endless() && Clock::now() >= end_; }
  Clock::time_point end() const { return end_; }
  int timeout_ms() const { return timeout_ms_; }  // as given, for messages

  Deadline plus_ms(int more) const {
    Deadline later = *this;
    if (!endless()) later.end_ += std::chrono::milliseconds(more);
    return later;
  }

  // For poll(): rounded up, so that a poll that times out has reached the deadline; -1 = without end.
  // `longest` bounds the answer where the caller has other things to look at (-1: no bound).
  int poll_ms(int longest = -1) const {
    if (endless()) return longest;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    const auto ms = std::clamp<long long>(left, 0, 60'000);
    return static_cast<int>(longest < 0 ? ms : std::min<long long>(ms, longest));
  }

 private:
  Clock::time_point end_ = Clock::time_point::max();
  int timeout_ms_ = 0;
};

}  // namespace sluice::boot
