#include "engine/cuda/cuda_engine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "core/slices.h"
#include "engine/cuda/capture.h"
#include "engine/cuda/device_window.h"
#include "engine/cuda/events.h"
#include "engine/cuda/gpus.h"
#include "engine/cuda/host_flags.h"
#include "engine/cuda/lane.h"
#include "engine/cuda/lanes_here.h"
#include "engine/cuda/launch.h"
#include "engine/cuda/reports.h"
#include "engine/cuda/streams.h"
#include "engine/leaving.h"
#include "engine/wait.h"
#include "engine/window.h"

namespace sluice::cuda {

namespace {

// How often the watchdog looks at lanes.
constexpr std::chrono::microseconds watch_every{500};
// SMs of one operation when nobody says: the link is full from 12 to 16 on (bench/probes).
constexpr int default_sms = 24;

// The engine's part of the control page, in device memory.
struct EnginePage {
  DeviceChannel* channels = nullptr;             // [channels]
  core::AddressTable* addresses = nullptr;
  core::Topology* topology = nullptr;
  SharedChannel** shared = nullptr;              // [channels][R]
  std::int32_t* scratch = nullptr;               // [channels][scratch_elements]
};

void lay_out(core::Slices& slices, EnginePage& page, int channels, int ranks, int experts) {
  page.channels = slices.take<DeviceChannel>(channels);
  page.addresses = slices.take<core::AddressTable>(1);
  page.topology = slices.take<core::Topology>(1);
  page.shared = slices.take<SharedChannel*>(static_cast<std::int64_t>(channels) * ranks);
  page.scratch = slices.take<std::int32_t>(channels * scratch_elements(ranks, experts));
}

// A stream that waits occupies a hardware queue, and with too few of them it stands in front of others
// (bench/probes/waiting_streams). `lanes`: of all ranks of this process, and of the communicators before.
AwaitForm choose_form(int lanes, int ranks, int rank) {
  const char* const asked = std::getenv("SLUICE_CUDA_AWAIT");
  const std::string form = asked ? asked : "";
  if (!form.empty() && form != "stream" && form != "host") {
    throw ArgumentError(fmt::format("communicator on rank {}: SLUICE_CUDA_AWAIT = \"{}\" is neither stream nor host", rank, form), rank);
  }
  if (ranks == 1 || form == "stream") return AwaitForm::stream;  // with one rank nothing is ever awaited
  return form != "host" && lanes <= most_waiting_lanes() ? AwaitForm::stream : AwaitForm::host;
}

// The GPU of a rank is the one that its thread has chosen, as everywhere in CUDA.
int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

class CudaEngine final : public engine::Engine {
 public:
  CudaEngine(const engine::EngineSpec& spec, std::shared_ptr<boot::GroupState> group)
      : spec_(spec), group_(std::move(group)), device_(current_device()), lanes_here_(spec_.page.channels) {
    const WindowKind kind = agree_on_gpus(*group_, device_);
    view_.rank = spec_.topology.rank;
    view_.page = spec_.page;
    view_.arena_offset = spec_.page.arena_offset();
    view_.arena_bytes = spec.arena_bytes;
    engine::together(*group_, [this] { prepare(); });
    flags_ = std::make_unique<HostFlags>(*group_, spec_.page.channels);
    windows_ = std::make_unique<DeviceWindows>(*group_, device_, view_.arena_offset + spec.arena_bytes, kind);
    flags_->connect(*group_);
    engine::together(*group_, [this] { clear_page(); });
    windows_->connect(*group_);
    engine::together(*group_, [this] { fill_page(); });
    // Apart from it: no other rank of the process launches while streams have their first launch (streams.cpp).
    engine::together(*group_, [this] { start_lanes(); });
  }

  ~CudaEngine() override {
    const CurrentDevice current(device_);
    const engine::Leaving leaving;
    for (const auto& lane : lanes_) lane->host().leave_at(leaving.deadline_ns());
    for (const auto& lane : lanes_) lane->drain();
  }

  int default_num_sms() const override { return std::min(default_sms, sms_); }
  const char* device_error() const override { return "CUDA error"; }
  const engine::WindowView& window() const override { return view_; }
  engine::Lane& lane(int channel) override { return *lanes_[static_cast<std::size_t>(channel)]; }
  std::shared_ptr<engine::LaneEvent> make_event() override { return std::make_shared<CudaEvent>(events_); }
  std::shared_ptr<core::Report> make_report() override { return ReportPool::take(reports_); }

  void set_deadline_ms(int deadline_ms) override {
    for (const auto& lane : lanes_) lane->host().set_deadline_ns(deadline_ms * std::int64_t{1'000'000});
  }

  bool captures(void* stream) const override {
    if (capture_of(static_cast<cudaStream_t>(stream)).id == 0) return false;
    if (form_ == AwaitForm::stream) return true;
    throw ArgumentError(fmt::format("rank {}: the stream is being captured, but in this process a host thread waits for the "
                                    "peers, and a graph has none; set CUDA_DEVICE_MAX_CONNECTIONS=32 (or fewer ranks per "
                                    "process, or SLUICE_CUDA_AWAIT=stream)", view_.rank),
                        view_.rank);
  }

  void fetch(void* to, const void* from, std::int64_t bytes) override {
    const CurrentDevice current(device_);
    const UntouchedCaptures beside;
    const std::lock_guard lock(copies_mutex_);
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, *copies_), "cudaMemcpyAsync", view_.rank);
    check(cudaStreamSynchronize(*copies_), "cudaStreamSynchronize", view_.rank);
  }

 private:
  void prepare() {
    const CurrentDevice current(device_);
    cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, device_);
    prepare_kernels();
    events_ = std::make_shared<EventPool>(device_);
    reports_ = std::make_shared<ReportPool>(spec_.topology.ranks, spec_.topology.local_experts(spec_.topology.rank));
    copies_ = std::make_unique<PooledStream>(device_, view_.rank, StreamUse::works);
    view_.event_on = [pool = events_](void* stream) -> std::shared_ptr<engine::LaneEvent> {
      return event_on(pool, static_cast<cudaStream_t>(stream));
    };
    const int channels = spec_.page.channels;
    const int here = group_->in_one_process() ? channels * spec_.topology.ranks : channels;
    form_ = choose_form(std::max(here, lanes_here_.count()), spec_.topology.ranks, view_.rank);
  }

  void start_lanes() {
    const CurrentDevice current(device_);
    for (int c = 0; c < spec_.page.channels; ++c) lanes_.push_back(make_lane(c));
    watch_ = group_->watch([this](int peer) {
      for (const auto& lane : lanes_) lane->host().peer_gone(peer);
    });
    watchdog_ = std::jthread([this](std::stop_token stop) { watch_lanes(stop); });
  }

  static std::shared_ptr<engine::LaneEvent> event_on(const std::shared_ptr<EventPool>& pool, cudaStream_t stream) {
    if (capture_of(stream).id != 0) {
      throw SystemError("an event of work outside of a capture was asked for while the stream is being captured");
    }
    const CurrentDevice of_pool(pool->device());
    const UntouchedCaptures beside;
    // Nothing lies in it, nor, for the legacy stream, in those that it orders: cheaper to ask than to wait.
    if (cudaStreamQuery(stream) == cudaSuccess) return nullptr;
    auto event = std::make_shared<CudaEvent>(pool);
    const std::lock_guard turn(queueing(pool->device()));
    check(event->record(stream), "cudaEventRecord", -1);
    return event;
  }

  EnginePage page_at(std::byte* base) const {
    EnginePage page;
    core::Slices slices(base);
    lay_out(slices, page, spec_.page.channels, spec_.topology.ranks, spec_.topology.experts);
    return page;
  }

  // Before any peer maps the window. Never in the legacy stream: that waits for every blocking stream of the caller,
  // also for one in which a peer waits for this rank.
  void clear_page() {
    const CurrentDevice current(device_);
    const UntouchedCaptures beside;
    const int rank = spec_.topology.rank;
    std::byte* const base = windows_->of(rank);
    check(cudaMemsetAsync(base, 0, static_cast<std::size_t>(view_.arena_offset), *copies_), "cudaMemset", rank);
    const EnginePage page = page_at(base);
    for (int c = 0; c < spec_.page.channels; ++c) {
      check(cudaMemsetAsync(&page.channels[c].fault_at, 0xff, sizeof(DeviceChannel::fault_at), *copies_), "cudaMemset", rank);
    }
    check(cudaStreamSynchronize(*copies_), "clearing the control page", rank);
  }

  // A copy from pageable memory may return before its bytes are in device memory: lanes must not read them, nor may
  // the window be unmapped, before.
  void fill_page() {
    const CurrentDevice current(device_);
    const UntouchedCaptures beside;
    const int rank = spec_.topology.rank, ranks = spec_.topology.ranks, channels = spec_.page.channels;
    const EnginePage page = page_at(windows_->of(rank));
    core::AddressTable addresses;
    for (int r = 0; r < ranks; ++r) addresses.base[r] = windows_->of(r);
    std::vector<SharedChannel*> shared;
    for (int c = 0; c < channels; ++c) {
      for (int r = 0; r < ranks; ++r) shared.push_back(&flags_->of(r, c));
    }
    const auto upload = [&](void* to, const void* from, std::size_t bytes) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, *copies_), "filling the control page", rank);
    };
    upload(page.addresses, &addresses, sizeof(addresses));
    upload(page.topology, &spec_.topology, sizeof(spec_.topology));
    upload(page.shared, shared.data(), shared.size() * sizeof(shared[0]));
    check(cudaStreamSynchronize(*copies_), "filling the control page", rank);
    view_.keep = windows_->own();
    view_.base = windows_->of(rank);
    view_.addresses = page.addresses;
    view_.topology = page.topology;
  }

  std::unique_ptr<CudaLane> make_lane(int channel) {
    const int ranks = spec_.topology.ranks, rank = spec_.topology.rank;
    const EnginePage page = page_at(windows_->of(rank));
    std::vector<SharedChannel*> all;
    for (int r = 0; r < ranks; ++r) all.push_back(&flags_->of(r, channel));
    CudaLane::Parts parts;
    parts.device = device_;
    parts.num_sms = default_num_sms();
    parts.most_sms = sms_;
    parts.form = form_;
    parts.topology = spec_.topology;
    parts.host = std::make_unique<HostChannel>(rank, ranks, std::move(all));
    parts.host->set_deadline_ns(spec_.deadline_ms * std::int64_t{1'000'000});
    parts.flags = &flags_->of(rank, channel);
    parts.channel = page.channels + channel;
    parts.shared = page.shared + static_cast<std::ptrdiff_t>(channel) * ranks;
    parts.scratch.elements = scratch_elements(ranks, spec_.topology.experts);
    parts.scratch.counts = page.scratch + channel * parts.scratch.elements;
    parts.events = events_;
    parts.keep = std::make_shared<std::pair<std::shared_ptr<DeviceMapping>, std::shared_ptr<engine::Mapping>>>(windows_->own(), flags_->own());
    return std::make_unique<CudaLane>(std::move(parts));
  }

  // Makes no CUDA call.
  void watch_lanes(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const auto& lane : lanes_) lane->host().watch(engine::now_ns());
      std::this_thread::sleep_for(watch_every);
    }
  }

  engine::EngineSpec spec_;
  std::shared_ptr<boot::GroupState> group_;
  int device_;
  LanesHere lanes_here_;
  int sms_ = 1;
  AwaitForm form_ = AwaitForm::stream;
  std::shared_ptr<EventPool> events_;
  std::shared_ptr<ReportPool> reports_;
  std::unique_ptr<HostFlags> flags_;
  std::unique_ptr<DeviceWindows> windows_;
  engine::WindowView view_;
  std::mutex copies_mutex_;
  std::unique_ptr<PooledStream> copies_;
  std::vector<std::unique_ptr<CudaLane>> lanes_;
  std::shared_ptr<void> watch_;
  std::jthread watchdog_;  // ends first
};

}  // namespace

std::int64_t engine_bytes(int channels, int ranks, int experts) {
  core::Slices slices;
  EnginePage page;
  lay_out(slices, page, channels, ranks, experts);
  return slices.bytes();
}

std::unique_ptr<engine::Engine> make_engine(const engine::EngineSpec& spec, std::shared_ptr<boot::GroupState> group) {
  return std::make_unique<CudaEngine>(spec, std::move(group));
}

}  // namespace sluice::cuda
