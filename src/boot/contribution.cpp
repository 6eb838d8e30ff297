#include "boot/contribution.h"

#include <algorithm>

#include <fmt/core.h>
#include <sluice/errors.h>

namespace sluice::boot {

const char* name_of(FrameKind kind) {
  switch (kind) {
    case FrameKind::all_gather: return "all_gather";
    case FrameKind::barrier: return "barrier";
    case FrameKind::have_descriptor: case FrameKind::descriptors: return "exchange_descriptors";
    case FrameKind::objects: return "exchange_objects";
    default: return "something else";
  }
}

std::string where(FrameKind call, int rank, int size) { return fmt::format("{} on rank {} of {}", name_of(call), rank, size); }

void refuse_forked_copy(FrameKind call, int rank, int size) {
  throw ArgumentError(fmt::format("{}: this is a forked copy of the rank, and only the process that made the group may use it",
                                  where(call, rank, size)), rank);
}

Contribution refusal(const std::string& why) {
  Contribution no;
  no.kind = FrameKind::refused;
  const auto* text = reinterpret_cast<const std::byte*>(why.data());
  no.bytes.assign(text, text + std::min(why.size(), max_text_bytes));
  return no;
}

Contribution gather_contribution(std::span<const std::byte> bytes) {
  if (bytes.size() > max_message_bytes)
    return refusal(fmt::format("a message of {} bytes, the limit is {}; send it in parts", bytes.size(), max_message_bytes));
  Contribution mine;
  mine.kind = FrameKind::all_gather;
  mine.bytes.assign(bytes.begin(), bytes.end());
  return mine;
}

void check_contributions(const Contributions& all, int rank, FrameKind call) {
  const int size = static_cast<int>(all.size());
  const Contribution& own = *all[static_cast<std::size_t>(rank)];
  if (own.kind == FrameKind::refused)
    throw ArgumentError(fmt::format("{}: {}", where(call, rank, size), printable(own.bytes)), rank);
  for (int r = 0; r < size; ++r) {
    const Contribution& theirs = *all[static_cast<std::size_t>(r)];
    if (theirs.kind == FrameKind::refused)
      throw PeerError(fmt::format("{}: rank {} refused: {}", where(call, rank, size), r, printable(theirs.bytes)), rank);
  }
  for (int r = 0; r < size; ++r) {
    const FrameKind kind = all[static_cast<std::size_t>(r)]->kind;
    if (kind != all[0]->kind)
      throw PeerError(fmt::format("{}: rank {} calls {} while rank 0 calls {}; all ranks must make the same calls",
                                  where(call, rank, size), r, name_of(kind), name_of(all[0]->kind)), rank);
  }
}

}  // namespace sluice::boot
