#include "protocol/step_engine.h"

#include <fmt/format.h>

#include <new>

namespace sluice::protocol {

using core::Stage;
using core::Status;

std::int64_t engine_bytes(int channels) {
  return core::align_up(channels * std::int64_t{sizeof(StepFlags)}, 64);
}

namespace {
core::Topology topology_of(const WorldShape& shape, int rank) {
  core::Topology topology;
  topology.rank = rank;
  topology.ranks = shape.ranks;
  topology.experts = shape.experts;
  topology.even = shape.experts / shape.ranks;
  for (int r = 0; r <= shape.ranks; ++r) topology.first_expert[r] = r * topology.even;
  return topology;
}
}  // namespace

bool StepEvent::wait(std::chrono::milliseconds) const {
  if (state() != State::pending) return true;
  return world_->host_waits && world_->host_waits(*this);
}

void StepEvent::happen(State state) const { world_->machine().set(state_, static_cast<std::uint8_t>(state)); }

StepWorld::StepWorld(const WorldShape& shape, Mutation mutation)
    : shape_(shape),
      mutation_(std::move(mutation)),
      page_(core::page_layout(engine_bytes(shape.channels), shape.ranks, shape.experts, shape.channels)),
      machine_(
          static_cast<std::size_t>(shape.ranks * (arena_offset() + shape.arena_bytes)) + shape.spare_bytes,
          shape.ranks * shape.channels) {
  for (int r = 0; r < shape.ranks; ++r) {
    const std::int64_t bytes = arena_offset() + shape.arena_bytes;
    windows_.push_back({machine_.take(static_cast<std::size_t>(bytes)), bytes});
    addresses_.base[r] = windows_.back().base;
    topologies_.push_back(topology_of(shape, r));
  }
  for (int r = 0; r < shape.ranks; ++r) {
    for (int c = 0; c < shape.channels; ++c) {
      auto* const flags = new (windows_[static_cast<std::size_t>(r)].base + c * sizeof(StepFlags)) StepFlags;
      for (int peer = 0; peer < 8; ++peer) {
        flags->flag[0][peer] = peer < shape.ranks && peer != r ? 0 : 1;
        flags->flag[1][peer] = 1;
      }
      lanes_.push_back(std::make_unique<StepLane>(*this, r, c, flags));
    }
  }
  machine_.capture();
}

std::shared_ptr<StepEvent> StepWorld::make_event() {
  return std::make_shared<StepEvent>(*this, reinterpret_cast<std::uint8_t*>(machine_.take(1, 1)));
}

StepEngine::StepEngine(StepWorld& world, int rank) : world_(world), rank_(rank) {
  view_.base = world.window(rank).base;
  view_.page = world.page();
  view_.arena_offset = world.arena_offset();
  view_.arena_bytes = world.shape().arena_bytes;
  view_.addresses = &world.addresses();
  view_.rank = rank;
  view_.topology = &world.topology(rank);
}

engine::Lane& StepEngine::lane(int channel) { return world_.lane(rank_, channel); }
std::shared_ptr<engine::LaneEvent> StepEngine::make_event() { return world_.make_event(); }

// Reports are part of the state: they lie in the machine's memory and are never given back.
std::shared_ptr<core::Report> StepEngine::make_report() {
  const auto counts =
      static_cast<std::size_t>(world_.shape().ranks + world_.topology(rank_).local_experts(rank_));
  auto* const report = new (world_.machine().take(sizeof(core::Report))) core::Report;
  report->per_source =
      reinterpret_cast<std::int64_t*>(world_.machine().take(counts * sizeof(std::int64_t), 8));
  report->per_expert = report->per_source + world_.shape().ranks;
  world_.machine().capture();
  return {std::shared_ptr<void>(), report};
}

namespace {

std::string lane_name(const StepLane& lane) {
  return fmt::format("rank {} channel {}", lane.rank(), lane.channel());
}

}  // namespace

const char* name_of(Stage stage) { return stage == Stage::open ? "OPEN" : "CLOSE"; }

std::string describe(StepWorld& world, std::uint32_t at) {
  for (int r = 0; r < world.shape().ranks; ++r) {
    const auto base = world.machine().offset_of(world.window(r).base);
    if (at < base || at >= base + world.window(r).bytes) continue;
    const std::int64_t offset = at - base;
    for (int c = 0; c < world.shape().channels; ++c) {
      const std::int64_t in_flags = offset - c * std::int64_t{sizeof(StepFlags)};
      if (in_flags >= 0 && in_flags < 16) {
        return fmt::format("flag {} of rank {} at rank {} channel {}",
                           name_of(static_cast<Stage>(in_flags / 8)), in_flags % 8, r, c);
      }
      if (in_flags >= 16 && in_flags < std::int64_t{sizeof(StepFlags)}) {
        return fmt::format("status told by rank {} at rank {} channel {}",
                           (in_flags - 16) / std::int64_t{sizeof(Status)}, r, c);
      }
      for (int s = 0; s < world.shape().ranks; ++s) {
        const std::int64_t record = world.page().record_offset(c, s);
        if (offset >= record && offset < record + world.page().record_bytes) {
          return fmt::format("record of rank {} at rank {} channel {}", s, r, c);
        }
      }
    }
    return fmt::format("arena of rank {} +{}", r, offset - world.arena_offset());
  }
  return fmt::format("report +{}", at);
}

// A flag may be raised only when the last signal has been consumed and that is visible. After a failure
// flags carry nothing any more: both sides have been told, or will be.
std::string lost_signal(StepWorld& world, int lane, const Entry& entry) {
  if (!entry.release) return {};
  for (int p = 0; p < world.lanes(); ++p) {
    StepLane& owner = world.lane(p);
    const auto begin = world.machine().offset_of(&owner.flags().flag);
    if (entry.at < begin || entry.at >= begin + sizeof(owner.flags().flag)) continue;
    if (owner.own().failed || world.lane(lane).own().failed) return {};
    if (world.machine().base()[entry.at] != std::byte{0}) {
      return fmt::format("lost signal: {} raises {}, and the last one is not consumed",
                         lane_name(world.lane(lane)), describe(world, entry.at));
    }
    for (const Machine::Id id : world.machine().buffer(p)) {
      if (!world.machine().entry(id).overlaps(entry.at, entry.at + 1)) continue;
      return fmt::format("lost signal: {} raises {}, whose reset is not visible yet",
                         lane_name(world.lane(lane)), describe(world, entry.at));
    }
  }
  return {};
}

}  // namespace sluice::protocol
