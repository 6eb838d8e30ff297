// Scripts in a row, linked by Script::next: to add one takes no memory, so it cannot fail.
#pragma once

#include <memory>
#include <utility>

#include "core/script.h"

namespace sluice::cpu {

// Used under a lock of its owner.
class ScriptQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  core::Script* first() const { return first_.get(); }

  void add(std::unique_ptr<core::Script> script) {
    core::Script* const added = script.get();
    (first_ ? last_->next : first_) = std::move(script);
    last_ = added;
  }

  // Not when it is empty.
  std::unique_ptr<core::Script> take_first() { return std::exchange(first_, std::move(first_->next)); }

 private:
  std::unique_ptr<core::Script> first_;
  core::Script* last_ = nullptr;
};

}  // namespace sluice::cpu
