// The protocol: the scripts of all operations, and nothing else. plan -> OPEN -> move -> CLOSE.
#pragma once

#include <memory>
#include <vector>

#include "core/script.h"

namespace sluice::core {

// What all operations have.
struct Common {
  int num_sms = 0;
  std::int64_t bytes = 0;     // that this rank moves, about
  Caller caller;
  std::shared_ptr<Report> report;
  std::vector<Depend> first;  // before anything: ids there, blocks free
  std::vector<Depend> data;   // before rows are read
  std::vector<std::shared_ptr<const void>> keep;
};

struct DispatchParts {
  Common common;
  PlanArgs plan;
  PublishArgs publish;
  AgreeArgs agree;
  MoveArgs move;
  FinishArgs finish;
  std::shared_ptr<engine::LaneEvent> counts;  // null: nobody waits for them
  std::shared_ptr<engine::LaneEvent> ready;
};

struct CombineParts {
  Common common;
  bool gathers = false;
  GatherArgs gather;
  PublishArgs publish;
  AgreeArgs agree;
  ReduceArgs reduce;
  std::shared_ptr<engine::LaneEvent> ready;
  std::shared_ptr<engine::LaneEvent> inputs_free;
};

// A rank whose own call is illegal takes part in both stages and sends nothing but `refused`.
struct RefusalParts {
  Common common;
  OperationKind kind = OperationKind::none;
  PublishArgs publish;
  AgreeArgs agree;
  std::vector<std::shared_ptr<engine::LaneEvent>> events;  // for which somebody may wait: they happen at its end
};

std::unique_ptr<Script> dispatch_script(DispatchParts parts);
std::unique_ptr<Script> combine_script(CombineParts parts);
std::unique_ptr<Script> refusal_script(RefusalParts parts);

}  // namespace sluice::core
