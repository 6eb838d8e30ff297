// Event, Route and the calls of Communicator: handles on what core does.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include <sluice/communicator.h>
#include <sluice/errors.h>

#include "core/communicator_state.h"

namespace sluice {

namespace {
// An Event in the past or an object that was moved from.
template <class State>
State& checked(const std::shared_ptr<State>& state, const char* what) {
  if (!state) throw ArgumentError(fmt::format("this {} is empty: it was moved from or never made", what));
  return *state;
}
}  // namespace

void Event::wait() const {
  if (state_) state_->wait(std::chrono::milliseconds(-1));
}

bool Event::wait_for(int timeout_ms) const {
  if (timeout_ms < 0) throw ArgumentError(fmt::format("wait_for: timeout_ms = {} is negative", timeout_ms));
  return !state_ || state_->wait(std::chrono::milliseconds(timeout_ms));
}

bool Event::query() const { return wait_for(0); }

void Event::stream_wait(Stream stream) const {
  if (state_) state_->lane_event()->stream_wait(stream.handle);
}

std::int64_t Route::tokens() const { return checked(state_, "route").tables.tokens; }
int Route::topk() const { return checked(state_, "route").tables.topk; }
std::int64_t Route::bytes() const { return checked(state_, "route").block->bytes(); }

Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

DispatchResult Communicator::dispatch(const DispatchArgs& args, Stream stream) {
  return checked(state_, "communicator").dispatch(args, stream.handle);
}
CombineResult Communicator::combine(const CombineArgs& args, Stream stream) {
  return checked(state_, "communicator").combine(args, stream.handle);
}
TensorView Communicator::allocate(std::int64_t rows, std::int64_t row_bytes, DataType dtype) {
  return checked(state_, "communicator").allocate(rows, row_bytes, dtype);
}
void Communicator::used_on(const TensorView& view, Stream stream) {
  checked(state_, "communicator").used_on(view, stream.handle);
}
RoutingCounts Communicator::count(const DispatchArgs& args) const { return checked(state_, "communicator").count(args); }

int Communicator::rank() const { return checked(state_, "communicator").config().topology.rank; }
int Communicator::size() const { return checked(state_, "communicator").config().topology.ranks; }
int Communicator::nodes() const {
  int most = 0;
  for (const int node : checked(state_, "communicator").nodes()) most = std::max(most, node);
  return most + 1;
}

namespace {
void check_rank(const char* name, int rank, int size) {
  if (rank < 0 || rank >= size) throw ArgumentError(fmt::format("{}: rank = {} is outside 0 to {}", name, rank, size - 1));
}
}  // namespace

int Communicator::node_of(int rank) const {
  check_rank("node_of", rank, size());
  return state_->nodes()[static_cast<std::size_t>(rank)];
}

int Communicator::local_rank() const {
  const auto& nodes = checked(state_, "communicator").nodes();
  const auto me = nodes.begin() + rank();
  return static_cast<int>(std::count(nodes.begin(), me, *me));
}

int Communicator::first_expert(int rank) const {
  check_rank("first_expert", rank, size() + 1);
  return state_->config().topology.first_expert[rank];
}

int Communicator::local_experts() const { return first_expert(rank() + 1) - first_expert(rank()); }
const std::string& Communicator::engine() const { return checked(state_, "communicator").engine().name(); }
int Communicator::num_sms() const { return checked(state_, "communicator").engine().default_num_sms(); }
WindowSize Communicator::window_size() const { return checked(state_, "communicator").config().size; }

void Communicator::set_deadline_ms(int deadline_ms) {
  if (deadline_ms < 0) throw ArgumentError(fmt::format("set_deadline_ms: {} is negative", deadline_ms), rank());
  checked(state_, "communicator").engine().set_deadline_ms(deadline_ms);
}

}  // namespace sluice
