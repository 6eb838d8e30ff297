// An engine that hands everything on to the one inside: decorators derive from it.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <sluice/group.h>
#include <sluice/options.h>

#include "core/communicator_state.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/engine.h"

namespace sluice::faults {

class EngineAround : public engine::Engine {
 public:
  explicit EngineAround(std::unique_ptr<engine::Engine> inside) : inside_(std::move(inside)) {}
  int default_num_sms() const override { return inside_->default_num_sms(); }
  const char* device_error() const override { return inside_->device_error(); }
  const engine::WindowView& window() const override { return inside_->window(); }
  engine::Lane& lane(int channel) override { return inside_->lane(channel); }
  std::shared_ptr<engine::LaneEvent> make_event() override { return inside_->make_event(); }
  std::shared_ptr<core::Report> make_report() override { return inside_->make_report(); }
  bool captures(void* stream) const override { return inside_->captures(stream); }
  void fetch(void* to, const void* from, std::int64_t bytes) override { inside_->fetch(to, from, bytes); }
  void set_deadline_ms(int deadline_ms) override { inside_->set_deadline_ms(deadline_ms); }

 private:
  std::unique_ptr<engine::Engine> inside_;
};

// A communicator of one channel on what `around` makes of the CPU engine.
inline std::unique_ptr<core::CommunicatorState> make_communicator(
    const Group& group, CommunicatorOptions options,
    const std::function<std::unique_ptr<engine::Engine>(std::unique_ptr<engine::Engine>)>& around) {
  options.engine = "cpu";
  options.channels = 1;
  options.checks = Checks::on;
  const int ranks = group.size();
  const core::Config config = core::resolve(options, group.rank(), ranks, cpu::engine_bytes(1, ranks, options.experts));
  engine::EngineSpec spec;
  spec.topology = config.topology;
  spec.page = config.page;
  spec.arena_bytes = config.size.arena_bytes;
  spec.deadline_ms = options.deadline_ms;
  return std::make_unique<core::CommunicatorState>(config, std::vector<int>(static_cast<std::size_t>(ranks)),
                                                   around(cpu::make_engine(spec, group.state())));
}

}  // namespace sluice::faults
