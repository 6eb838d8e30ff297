// The public handle, include/sluice/group.h.
#include <sluice/group.h>

#include <atomic>

#include <fmt/core.h>
#include <sluice/errors.h>
#include <sluice/limits.h>

#include "boot/environment.h"
#include "boot/introduction.h"
#include "boot/process_group.h"
#include "boot/thread_group.h"

namespace sluice {
namespace {

boot::GroupState& need(const std::shared_ptr<boot::GroupState>& state, const char* call) {
  if (!state) throw ArgumentError(fmt::format("{}: this Group is empty; make it with threads, from_environment or from_all_gather", call));
  return *state;
}

void check_options(const char* call, const MeetOptions& options) {
  if (options.timeout_ms < 0)
    throw ArgumentError(fmt::format("{}: timeout_ms = {}, it must be 0 (without end) or more", call, options.timeout_ms));
}

// What is wrong with the arguments of from_all_gather; empty: nothing.
std::string wrong_arguments(int rank, int size, const MeetOptions& options) {
  if (size < 1 || size > limits::ranks_per_node)
    return fmt::format("size = {}, it must be between 1 and {}", size, limits::ranks_per_node);
  if (rank < 0 || rank >= size) return fmt::format("rank = {}, it must be between 0 and {}", rank, size - 1);
  if (options.timeout_ms < 0) return fmt::format("timeout_ms = {}, it must be 0 (without end) or more", options.timeout_ms);
  return {};
}

}  // namespace

std::vector<Group> Group::threads(int size) {
  if (size < 1 || size > limits::ranks_per_node)
    throw ArgumentError(fmt::format("threads: size = {}, it must be between 1 and {}", size, limits::ranks_per_node));
  std::vector<Group> groups;
  for (auto& state : boot::make_thread_groups(size, MeetOptions{}.timeout_ms)) groups.emplace_back(std::move(state));
  return groups;
}

Group Group::from_environment(const MeetOptions& options) {
  // Counted before anything can fail: the n-th call meets the n-th calls of the others.
  static std::atomic<unsigned> calls{0};
  const unsigned call = calls.fetch_add(1);
  check_options("from_environment", options);
  const boot::Environment found = boot::read_environment();
  return Group(boot::meet_processes({"from_environment", found.rank, found.size,
                                     fmt::format("{};call={}", found.job_key, call), options.timeout_ms}));
}

Group Group::from_all_gather(int rank, int size, const AllGather& all_gather, const MeetOptions& options) {
  if (!all_gather) throw ArgumentError("from_all_gather: no all_gather function is given");
  boot::Introduction mine = boot::introduce(rank, size);
  const std::string wrong = wrong_arguments(rank, size, options);
  mine.refused = wrong.empty() ? 0 : 1;
  // A rank with wrong arguments takes part too: else its peers would wait in their all-gather.
  const auto messages = all_gather(boot::encode(mine));
  if (!wrong.empty()) throw ArgumentError(fmt::format("from_all_gather: {}", wrong), rank);
  const auto all = boot::check_introductions(messages, mine);
  return Group(boot::meet_processes({"from_all_gather", rank, size, boot::job_key_of(all), options.timeout_ms}));
}

int Group::rank() const { return need(state_, "rank").rank(); }
int Group::size() const { return need(state_, "size").size(); }

std::vector<std::vector<std::byte>> Group::all_gather(std::span<const std::byte> message) const {
  auto& state = need(state_, "all_gather");
  return boot::or_give_up(state, [&] { return state.all_gather(message); });
}

void Group::barrier() const {
  auto& state = need(state_, "barrier");
  boot::or_give_up(state, [&] { state.barrier(); });
}

}  // namespace sluice
