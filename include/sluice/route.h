// Where every row of one dispatch went.
#pragma once

#include <cstdint>
#include <memory>

#include <sluice/export.h>

namespace sluice {

namespace core {
struct RouteState;
}

// Made by dispatch, used by combine and by later dispatches of the same communicator. A
// copyable handle; it holds arena memory (`bytes()`) until the last copy goes. All ranks use the same
// route in the same call: a rank that uses another gets PeerError, and so do its peers. Thread-safe. tokens, topk and
// bytes throw ArgumentError for an empty one.
class SLUICE_API Route {
 public:
  Route() = default;

  bool valid() const noexcept { return state_ != nullptr; }
  // Tokens of this rank when the route was made.
  std::int64_t tokens() const;
  // Expert choices per token; 0 for a route made from a rank mask.
  int topk() const;
  // Arena memory it holds, bytes.
  std::int64_t bytes() const;

  // Used by the library itself.
  explicit Route(std::shared_ptr<core::RouteState> state) : state_(std::move(state)) {}
  const std::shared_ptr<core::RouteState>& state() const { return state_; }

 private:
  std::shared_ptr<core::RouteState> state_;
};

}  // namespace sluice
