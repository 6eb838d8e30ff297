// What operations leave behind when they are traced: who was late, and what the time went into.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/export.h>

namespace sluice {

// One operation of one rank. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share; 0 = not
// reached. Per-rank vectors have R elements, own values included.
struct OperationTrace {
  enum class Outcome : std::uint8_t {
    running,  // when the trace was read
    done,
    stopped,  // after OPEN: a rank refused, ranks differed, or there was no room
    failed,   // the channel
  };

  bool combine = false;        // else dispatch
  int channel = 0;
  std::int64_t operation = 0;  // running number on its channel, from 1: the same on all ranks
  Outcome outcome = Outcome::running;
  std::int64_t tokens = 0;     // of this rank
  std::int64_t rows = 0;       // that this rank received (dispatch), or read (combine)
  std::int64_t row_bytes = 0;  // as they travel, without scales
  int num_sms = 0;             // CPU engine: workers

  std::int64_t called_ns = 0;  // the host made the call
  // Processor time that the calling thread, and its process, had used when it did.
  std::int64_t thread_cpu_ns = 0, process_cpu_ns = 0;

  std::int64_t begun_ns = 0;       // the lane took it up
  std::int64_t ready_ns = 0;       // own OPEN sent
  std::int64_t data_ns = 0;        // the data that it waited for was there; 0: it did not wait
  std::int64_t move_begin_ns = 0;
  std::int64_t move_end_ns = 0;    // own CLOSE sent
  std::int64_t end_ns = 0;

  std::vector<std::int64_t> arrived_ns;  // [R] when each rank sent its OPEN
  std::vector<std::int64_t> closed_ns;   // [R] when each rank sent its CLOSE
  std::vector<std::int64_t> rows_with;   // [R] rows sent to (dispatch) or read from (combine) each rank
};

// Where the time of one operation went, nanoseconds. The parts add up to `total`:
// before + wait + data + scheduling + move + closing + after.
struct Attribution {
  std::int64_t total = 0;       // from `begun` to `end`
  std::int64_t before = 0;      // to own OPEN: the route's plan; grouped and padded combines: local sums
  std::int64_t wait = 0;        // for the last peer's OPEN, as far as it was sent after the own one
  std::int64_t data = 0;        // then for the own data
  std::int64_t scheduling = 0;  // then until the move began: queues, free processors, the signal's way; nobody's fault
  std::int64_t move = 0;        // of the own rows
  std::int64_t closing = 0;     // then until the last peer's CLOSE: peers still move, they are not late
  std::int64_t after = 0;       // then: what is left to do here (dispatch: fan-out, padding)
  std::vector<std::int64_t> lateness;   // [R] max(0, arrived - ready)
  std::vector<std::int64_t> blame;      // [R] adds up to `wait`: of the last peer, shared equally with those within 10 % of it
  std::vector<std::int64_t> peer_move;  // [R] max(0, closed - move_end)
};

// For an operation that is done; all 0 for any other. Throws nothing.
SLUICE_API Attribution attribute(const OperationTrace& operation);

// One copy between the device and the host that ran beside the operations.
struct CopyTrace {
  std::int64_t begun_ns = 0, end_ns = 0;
  std::int64_t bytes = 0;
  bool to_host = true;
};

// What one rank's file of SLUICE_TRACE, or CommunicatorOptions::trace_dir, holds.
struct RankTrace {
  std::string communicator;      // the same text in the files of its ranks
  std::string host;
  std::string boot_id;           // of the machine: times are comparable where it is the same
  std::string engine;
  std::int64_t process = 0;
  int rank = 0, ranks = 0, channels = 0;
  std::int64_t made_ns = 0;      // CLOCK_MONOTONIC
  std::int64_t made_unix_ns = 0; // the same moment, CLOCK_REALTIME
  std::int64_t clock_error_ns = 0;  // at most, between times of two ranks
  std::int64_t lost = 0;         // operations that newer ones have overwritten
  std::vector<OperationTrace> operations;  // by time of call; the last of each channel may be running
  std::vector<CopyTrace> copies;           // by time
};

// Reads such a file, also while it is written, and after its process was killed. Throws ArgumentError with the path
// when it is no such file or is broken, SystemError when it cannot be read.
SLUICE_API RankTrace read_trace(const std::string& path);

}  // namespace sluice
