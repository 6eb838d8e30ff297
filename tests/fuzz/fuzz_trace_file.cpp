// Trace files come from outside: any bytes are a trace of a possible shape or a sentence, for read_trace, for the doctor and
// for the merge. The input gives two files their headers (but for the magic, and with short rings) and their rings.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "boot/unique_fd.h"
#include "cli/trace_events.h"
#include "doctor/text.h"
#include "trace/file.h"

namespace {

using namespace sluice;

struct Input {
  const std::uint8_t* data;
  std::size_t size;

  void take(void* to, std::size_t bytes) {
    const std::size_t given = std::min(bytes, size);
    std::memset(to, 0, bytes);
    if (given > 0) std::memcpy(to, data, given);
    data += given;
    size -= given;
  }
};

std::vector<char> file_of(Input& input) {
  trace::FileHeader header;
  input.take(static_cast<void*>(&header), sizeof(header));
  std::memcpy(header.magic, trace::file_magic, sizeof(header.magic));
  header.ranks %= 5;
  header.channels %= 3;
  header.slots %= 5;
  header.copy_slots %= 5;
  std::vector<char> bytes(trace::header_bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (header.ranks > 0 && header.channels > 0 && header.slots > 0 && header.copy_slots >= 0) {
    bytes.resize(trace::file_bytes(header));
    input.take(bytes.data() + trace::header_bytes, bytes.size() - trace::header_bytes);
  }
  return bytes;
}

RankTrace read(const std::vector<char>& bytes) {
  const boot::UniqueFd file(::memfd_create("trace", MFD_CLOEXEC));
  if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  return read_trace(fmt::format("/proc/self/fd/{}", file.get()));
}

void check(const RankTrace& trace) {
  if (trace.rank < 0 || trace.rank >= trace.ranks) std::abort();
  for (const OperationTrace& op : trace.operations) {
    if (op.arrived_ns.size() != static_cast<std::size_t>(trace.ranks)) std::abort();
    const Attribution a = attribute(op);
    if (op.outcome == OperationTrace::Outcome::done &&
        a.before + a.wait + a.data + a.scheduling + a.move + a.closing + a.after != a.total) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input{data, size};
  std::vector<RankTrace> traces;
  for (int i = 0; i < 2; ++i) {
    try {
      traces.push_back(read(file_of(input)));
      check(traces.back());
    } catch (const ArgumentError&) {
    }
  }
  if (traces.empty()) return 0;
  cli::TraceFolder folder;
  folder.communicators.push_back({traces.front().communicator, traces.front().ranks, {traces.front()}});
  cli::write_events(folder, [](const cli::Json&) {});
  try {
    const doctor::Diagnosis found = doctor::diagnose(doctor::choose_traces(std::move(traces), "", "fuzz"));
    static_cast<void>(doctor::text_of(found));
  } catch (const ArgumentError&) {
  }
  return 0;
}
