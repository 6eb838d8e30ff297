// An engine that hands everything on to the one inside: decorators derive from it.
#pragma once

#include <memory>
#include <utility>

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

}  // namespace sluice::faults
