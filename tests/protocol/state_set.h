// A set of hashes of states.
#pragma once

#include <vector>

#include "protocol/machine.h"

namespace sluice::protocol {

class StateSet {
 public:
  StateSet() : slots_(1 << 12) {}
  std::uint64_t size() const { return size_; }

  // False when it was there.
  bool insert(Hash hash) {
    if (hash == Hash{}) hash.a = 1;
    if (size_ * 4 >= slots_.size() * 3) grow();
    if (!place(hash)) return false;
    ++size_;
    return true;
  }

 private:
  bool place(const Hash& hash) {
    for (std::size_t i = hash.a & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i] == hash) return false;
      if (slots_[i] == Hash{}) {
        slots_[i] = hash;
        return true;
      }
    }
  }

  void grow() {
    std::vector<Hash> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Hash& hash : old) {
      if (!(hash == Hash{})) place(hash);
    }
  }

  std::vector<Hash> slots_;
  std::uint64_t size_ = 0;
};

}  // namespace sluice::protocol
