#include <sluice/route.h>

#include <sluice/errors.h>

#include "core/route_state.h"

namespace sluice {

namespace {
const core::RouteState& checked(const std::shared_ptr<core::RouteState>& state) {
  if (!state) throw ArgumentError("this route is empty: it was moved from or never made");
  return *state;
}
}  // namespace

std::int64_t Route::tokens() const { return checked(state_).tables.tokens; }
int Route::topk() const { return checked(state_).tables.topk; }
std::int64_t Route::bytes() const { return checked(state_).block->bytes(); }

}  // namespace sluice
