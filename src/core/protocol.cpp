#include "core/protocol.h"

#include <utility>

namespace sluice::core {

namespace {

// Flags are consumed by the first kernel after the await that needed them, and reset by its tail before
// it signals: a peer can set a flag again only after it has seen that signal.
constexpr Tail consume_close_then_open{.resets = true, .signals = true, .reset = Stage::close, .signal = Stage::open};
constexpr Tail consume_open_then_close{.resets = true, .signals = true, .reset = Stage::open, .signal = Stage::close};

class Builder {
 public:
  Builder(OperationKind kind, Common& common) : script_(std::make_unique<Script>()), num_sms_(common.num_sms) {
    script_->kind = kind;
    script_->report = common.report;
    script_->caller = common.caller;
    script_->bytes = common.bytes;
    script_->keep = std::move(common.keep);
    depend(common.first);
  }

  void depend(std::vector<Depend>& events) {
    for (Depend& event : events) script_->steps.emplace_back(std::move(event));
  }
  void run(KernelArgs kernel, Stamp stamp = Stamp::none, Tail tail = {}) {
    const bool always = std::holds_alternative<PlanArgs>(kernel) || std::holds_alternative<FinishArgs>(kernel);
    script_->steps.emplace_back(Run{std::move(kernel), tail, stamp, num_sms_, always});
  }
  void await(Stage stage, Stamp stamp = Stamp::none) { script_->steps.emplace_back(Await{stage, stamp}); }
  void record(std::shared_ptr<engine::LaneEvent> event) {
    if (event) script_->steps.emplace_back(Record{std::move(event)});
  }

  // OPEN: nothing is written to a peer before its CLOSE of the operation before (A4); the page is read
  // by agree alone (A3).
  void open(const PublishArgs& publish, const AgreeArgs& agree) {
    await(Stage::close);
    run(publish, Stamp::open_sent, consume_close_then_open);
    await(Stage::open, Stamp::open_seen);
    run(agree);
  }

  std::unique_ptr<Script> take() { return std::move(script_); }

 private:
  std::unique_ptr<Script> script_;
  int num_sms_;
};

}  // namespace

std::unique_ptr<Script> dispatch_script(DispatchParts parts) {
  Builder script(OperationKind::dispatch, parts.common);
  if (parts.finish.makes_route) script.run(parts.plan, Stamp::plan_end);
  script.open(parts.publish, parts.agree);
  script.record(std::move(parts.counts));
  script.depend(parts.common.data);
  script.run(parts.move, Stamp::close_sent, consume_open_then_close);
  script.await(Stage::close, Stamp::close_seen);
  script.run(parts.finish, Stamp::end);
  script.record(std::move(parts.ready));
  return script.take();
}

// The result is there when the sum is; that nobody reads the inputs any more is awaited behind it, and
// once more, without effect, by the next operation.
std::unique_ptr<Script> combine_script(CombineParts parts) {
  Builder script(OperationKind::combine, parts.common);
  script.depend(parts.common.data);
  if (parts.gathers) script.run(parts.gather, Stamp::plan_end);
  script.open(parts.publish, parts.agree);
  script.run(parts.reduce, Stamp::close_sent, consume_open_then_close);
  script.record(std::move(parts.ready));
  script.await(Stage::close, Stamp::close_seen);
  script.run(SealArgs{}, Stamp::end);
  script.record(std::move(parts.inputs_free));
  return script.take();
}

std::unique_ptr<Script> refusal_script(RefusalParts parts) {
  Builder script(parts.kind, parts.common);
  script.open(parts.publish, parts.agree);
  script.run(SealArgs{}, Stamp::close_sent, consume_open_then_close);
  script.await(Stage::close, Stamp::close_seen);
  script.run(SealArgs{}, Stamp::end);
  for (auto& event : parts.events) script.record(std::move(event));
  return script.take();
}

}  // namespace sluice::core
