// The memory in which one communicator of one rank records its operations.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <sluice/trace.h>

#include "core/trace.h"
#include "trace/file.h"

namespace sluice::trace {

// Whose operations they are.
struct Identity {
  std::string engine;
  int rank = 0, ranks = 1, channels = 1;
};

class Recorder {
 public:
  // Room for the last `slots` operations of each channel, in a new file of `folder`, which is made if it is not there, or
  // in memory alone when `folder` is empty. Throws SystemError.
  Recorder(const Identity& who, std::int64_t slots, const std::string& folder);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // What all ranks of the communicator call it.
  void name(const std::string& communicator);
  core::TraceRing ring() const { return ring_of(header(), base_); }
  std::vector<OperationTrace> operations() const;

 private:
  FileHeader& header() const { return *reinterpret_cast<FileHeader*>(base_); }

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::trace
