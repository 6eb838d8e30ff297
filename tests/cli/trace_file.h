// Writes traces as ranks write them, with times of the test's choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cli/program.h"
#include "core/trace.h"
#include "trace/file.h"

namespace sluice::cli::testing {

// A file with room for 8 operations on each of 2 channels and for 4 copies. The header may be changed until text() is taken.
class TraceText {
 public:
  explicit TraceText(int rank, int ranks = 2, const char* communicator = "c1", const char* boot_id = "b1") {
    header.rank = rank;
    header.ranks = ranks;
    header.channels = 2;
    header.slots = 8;
    header.copy_slots = 4;
    std::memcpy(header.magic, trace::file_magic, sizeof(header.magic));
    std::strcpy(header.communicator, communicator);
    std::strcpy(header.boot_id, boot_id);
    std::strcpy(header.host, "host");
    std::strcpy(header.engine, "cpu");
    words_.resize(trace::file_bytes(header) / sizeof(std::int64_t));
  }

  // Times in nanoseconds, each 0 where it was not reached; `arrived` and `closed` of each rank.
  struct Operation {
    std::int64_t number = 1, called = 0, begun = 0, ready = 0, data = 0, move_begin = 0, move_end = 0, end = 0;
    std::vector<std::int64_t> arrived{}, closed{};
    int channel = 0;
  };
  void add(const Operation& op) {
    using core::TracePeer;
    using core::TraceWord;
    std::int64_t* const entry = trace::ring_of(header, reinterpret_cast<std::byte*>(words_.data())).entry(op.channel, op.number);
    const auto put = [&](TraceWord word, std::int64_t value) { entry[static_cast<std::size_t>(word)] = value; };
    const bool ended = op.end != 0;
    put(TraceWord::version, 2 * op.number + (ended ? 1 : 0));
    put(TraceWord::kind, 0);
    put(TraceWord::outcome, ended ? 1 : 0);
    put(TraceWord::tokens, 5);
    put(TraceWord::rows, 7);
    put(TraceWord::row_bytes, 64);
    put(TraceWord::called, op.called);
    put(TraceWord::begun, op.begun);
    put(TraceWord::ready, op.ready);
    put(TraceWord::data_there, op.data);
    put(TraceWord::move_begin, op.move_begin);
    put(TraceWord::close_sent, op.move_end);
    put(TraceWord::end, op.end);
    for (std::size_t r = 0; r < op.arrived.size(); ++r) {
      std::int64_t* const peer = entry + static_cast<std::size_t>(TraceWord::count) + r * static_cast<std::size_t>(TracePeer::count);
      peer[static_cast<std::size_t>(TracePeer::arrived)] = op.arrived[r];
      peer[static_cast<std::size_t>(TracePeer::closed)] = op.closed[r];
    }
  }

  void add_copy(std::int64_t begun, std::int64_t end, std::int64_t bytes, bool to_host) {
    const trace::CopyEntry entry{begun, end, bytes, to_host ? 1 : 0};
    std::memcpy(reinterpret_cast<std::byte*>(words_.data()) + trace::copies_offset(header) +
                    static_cast<std::size_t>(header.copies++) * sizeof(entry), &entry, sizeof(entry));
  }

  std::string text() {
    std::memcpy(words_.data(), static_cast<const void*>(&header), sizeof(header));
    return {reinterpret_cast<const char*>(words_.data()), words_.size() * sizeof(std::int64_t)};
  }

  trace::FileHeader header;

 private:
  std::vector<std::int64_t> words_;
};

}  // namespace sluice::cli::testing
