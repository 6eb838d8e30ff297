#include "engine/cpu/cpu_engine.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <vector>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "engine/cpu/channel_flags.h"
#include "engine/cpu/lane.h"
#include "engine/cpu/releaser.h"
#include "engine/cpu/worker_team.h"
#include "engine/leaving.h"
#include "engine/wait.h"
#include "engine/window.h"

namespace sluice::cpu {

namespace {

int cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// Longer than a hop between two running threads; with more ranks than cores the peer needs this core.
std::int64_t spin_ns(int cores, int ranks) { return ranks <= cores ? 20'000 : 0; }

struct OwnedReport {
  core::Report report;
  std::vector<std::int64_t> counts;
};

class CpuEngine final : public engine::Engine {
 public:
  CpuEngine(const engine::EngineSpec& spec, std::shared_ptr<boot::GroupState> group)
      : spec_(spec), group_(std::move(group)) {
    const int ranks = spec_.topology.ranks, rank = spec_.topology.rank;
    view_.rank = rank;
    view_.page = spec_.page;
    view_.arena_offset = spec_.page.arena_offset();
    view_.arena_bytes = spec.arena_bytes;
    windows_ = std::make_unique<engine::Windows>(*group_, view_.arena_offset + spec.arena_bytes);
    for (int c = 0; c < spec_.page.channels; ++c) (new (flags_of(rank, c)) SharedFlags)->initialise(rank, ranks);
    windows_->connect(*group_);
    for (int r = 0; r < ranks; ++r) addresses_.base[r] = windows_->of(r);
    view_.base = windows_->of(rank);
    view_.addresses = &addresses_;
    view_.topology = &spec_.topology;
    view_.keep = windows_->own();
    engine::together(*group_, [this] { start_threads(); });
  }

  ~CpuEngine() override {
    const engine::Leaving leaving;
    for (const auto& lane : lanes_) lane->flags().leave_at(leaving.deadline_ns());
    for (const auto& lane : lanes_) lane->drain();
    for (const auto& lane : lanes_) lane->stop();
    watch_.reset();
    if (releaser_) releaser_->leave_at(leaving.deadline_ns());
  }

  int default_num_sms() const override { return team_->size(); }
  const engine::WindowView& window() const override { return view_; }
  engine::Lane& lane(int channel) override { return *lanes_[static_cast<std::size_t>(channel)]; }
  std::shared_ptr<engine::LaneEvent> make_event() override { return std::make_shared<CpuEvent>(); }

  std::shared_ptr<core::Report> make_report() override {
    auto owned = std::make_shared<OwnedReport>();
    const int ranks = spec_.topology.ranks;
    owned->counts.resize(static_cast<std::size_t>(ranks + spec_.topology.local_experts(spec_.topology.rank)));
    owned->report.per_source = owned->counts.data();
    owned->report.per_expert = owned->counts.data() + ranks;
    return {owned, &owned->report};
  }

  void set_deadline_ms(int deadline_ms) override {
    for (const auto& lane : lanes_) lane->flags().set_deadline_ns(deadline_ms * std::int64_t{1'000'000});
  }

  void fetch(void* to, const void* from, std::int64_t bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }

 private:
  SharedFlags* flags_of(int rank, int channel) const {
    return reinterpret_cast<SharedFlags*>(windows_->of(rank)) + channel;
  }

  // What has been started before it throws ends with this object.
  void start_threads() {
    try {
      const int share = std::max(1, cores_of_process() / spec_.topology.ranks);
      team_ = std::make_unique<WorkerTeam>(spec_.workers > 0 ? spec_.workers : share);
      releaser_ = std::make_unique<Releaser>();
      for (int c = 0; c < spec_.page.channels; ++c) lanes_.push_back(make_lane(c));
      watch_ = group_->watch([this](int peer) {
        for (const auto& lane : lanes_) lane->flags().peer_gone(peer);
      });
    } catch (const std::system_error& error) {
      throw SystemError(fmt::format("communicator on rank {}: a thread could not be started: {}; raise the limits of threads and of "
                                    "address space (ulimit -u, ulimit -v), or lower channels or workers",
                                    spec_.topology.rank, error.what()), spec_.topology.rank);
    }
  }

  std::shared_ptr<CpuLane> make_lane(int channel) {
    std::vector<SharedFlags*> all;
    for (int r = 0; r < spec_.topology.ranks; ++r) all.push_back(flags_of(r, channel));
    CpuLane::Parts parts;
    parts.flags = std::make_unique<ChannelFlags>(spec_.topology.rank, spec_.topology.ranks, std::move(all));
    parts.flags->set_deadline_ns(spec_.deadline_ms * std::int64_t{1'000'000});
    parts.team = team_.get();
    parts.releaser = releaser_.get();
    parts.scratch_bytes = scratch_bytes(team_->size(), spec_.topology.local_experts(spec_.topology.rank));
    parts.spin_ns = spin_ns(cores_of_process(), spec_.topology.ranks);
    return std::make_shared<CpuLane>(std::move(parts));
  }

  engine::EngineSpec spec_;
  std::shared_ptr<boot::GroupState> group_;
  std::unique_ptr<WorkerTeam> team_;
  std::unique_ptr<Releaser> releaser_;
  std::unique_ptr<engine::Windows> windows_;
  core::AddressTable addresses_;
  engine::WindowView view_;
  std::vector<std::shared_ptr<CpuLane>> lanes_;
  std::shared_ptr<void> watch_;
};

}  // namespace

std::int64_t engine_bytes(int channels, int, int) { return channels * std::int64_t{sizeof(SharedFlags)}; }

std::unique_ptr<engine::Engine> make_engine(const engine::EngineSpec& spec, std::shared_ptr<boot::GroupState> group) {
  return std::make_unique<CpuEngine>(spec, std::move(group));
}

}  // namespace sluice::cpu
