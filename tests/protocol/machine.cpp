#include "protocol/machine.h"

#include <algorithm>
#include <utility>

namespace sluice::protocol {

namespace {

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::byte* aligned(std::byte* p) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(p) + 63) / 64 * 64);
}

}  // namespace

void Hash::toggle(std::uint64_t where, std::uint64_t value) {
  const std::uint64_t h = mix(value + where * 0x9e3779b97f4a7c15u);
  a ^= h;
  b ^= mix(h ^ (where * 0xd6e8feb86659fd93u) ^ 0x2545f4914f6cdd1du);
}

Machine::Machine(std::size_t bytes, int lanes)
    : size_((bytes + 63) / 64 * 64),
      memory_(new std::byte[size_ + 64]()),
      shadow_memory_(new std::byte[size_ + 64]()),
      live_(aligned(memory_.get())),
      shadow_(aligned(shadow_memory_.get())),
      buffers_(static_cast<std::size_t>(lanes)) {}

std::byte* Machine::take(std::size_t bytes, std::size_t alignment) {
  taken_ = (taken_ + alignment - 1) / alignment * alignment;
  std::byte* const at = live_ + taken_;
  taken_ += bytes;
  if (taken_ > size_) throw std::bad_alloc();
  return at;
}

// Live and shadow differ in this word: brings the shadow up to date.
void Machine::word_changed(std::size_t word) {
  const std::uint64_t old = word_of(shadow_, word), now = word_of(live_, word);
  log_.push_back({Change::word_kind, 0, static_cast<std::uint32_t>(word), old});
  hash_.toggle(word, old);
  hash_.toggle(word, now);
  word_of(shadow_, word) = now;
}

void Machine::write(std::uint32_t at, const void* from, std::size_t bytes) {
  std::memcpy(live_ + at, from, bytes);
  for (std::size_t w = at / 8; w <= (at + bytes - 1) / 8; ++w) {
    if (word_of(live_, w) != word_of(shadow_, w)) word_changed(w);
  }
}

void Machine::capture() { capture_lines(0, taken_, nullptr); }

void Machine::capture(const void* begin, std::size_t bytes, std::vector<std::uint32_t>& changed) {
  const std::size_t at = offset_of(begin);
  capture_lines(at / 64 * 64, at + bytes, &changed);
}

void Machine::capture_lines(std::size_t begin, std::size_t end, std::vector<std::uint32_t>* changed) {
  for (std::size_t line = begin; line < end; line += 64) {
    if (std::memcmp(live_ + line, shadow_ + line, 64) == 0) continue;
    for (std::size_t w = line / 8; w < line / 8 + 8; ++w) {
      if (word_of(live_, w) == word_of(shadow_, w)) continue;
      word_changed(w);
      if (changed) changed->push_back(static_cast<std::uint32_t>(w));
    }
  }
}

Machine::Id Machine::intern(Entry entry) {
  Hash key;
  key.toggle(entry.at, entry.bytes * 8u + entry.fenced * 4u + entry.release * 2u + entry.is_reset);
  for (std::size_t i = 0; i < entry.data.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, entry.data.data() + i, std::min<std::size_t>(8, entry.data.size() - i));
    key.toggle((std::uint64_t{1} << 40) + i, word);
  }
  const auto [it, added] = known_.emplace(key, static_cast<Id>(entries_.size()));
  if (added) entries_.push_back(std::move(entry));
  return it->second;
}

void Machine::save_buffer(int lane) {
  log_.push_back({Change::buffer_kind, static_cast<std::uint8_t>(lane), 0, 0});
  saved_buffers_.push_back(buffers_[static_cast<std::size_t>(lane)]);
}

void Machine::push(int lane, Entry entry) {
  save_buffer(lane);
  buffers_[static_cast<std::size_t>(lane)].push_back(intern(std::move(entry)));
}

bool Machine::can_commit(int lane, std::size_t index, const Weakness& weakness) const {
  const Buffer& buffer = buffers_[static_cast<std::size_t>(lane)];
  const Entry& store = entries_[buffer[index]];
  for (std::size_t i = 0; i < index; ++i) {
    const Entry& older = entries_[buffer[i]];
    if (older.overlaps(store.at, store.at + store.bytes)) return false;
    if (!store.release || (weakness.release_overtakes_all && !older.release)) continue;
    if (!older.fenced || (weakness.release_overtakes_resets && older.is_reset)) continue;
    return false;
  }
  return true;
}

void Machine::commit(int lane, std::size_t index) {
  save_buffer(lane);
  Buffer& buffer = buffers_[static_cast<std::size_t>(lane)];
  const Entry& store = entries_[buffer[index]];
  buffer.erase(buffer.begin() + static_cast<std::ptrdiff_t>(index));
  write(store.at, store.data.data(), store.bytes);
}

void Machine::forget(int lane, std::uint32_t begin, std::uint32_t end) {
  save_buffer(lane);
  std::erase_if(buffers_[static_cast<std::size_t>(lane)],
                [&](Id id) { return entries_[id].overlaps(begin, end); });
}

std::uint8_t Machine::seen_by(int lane, std::uint32_t at) const {
  const Buffer& buffer = buffers_[static_cast<std::size_t>(lane)];
  for (auto it = buffer.rbegin(); it != buffer.rend(); ++it) {
    const Entry& store = entries_[*it];
    if (store.overlaps(at, at + 1)) return std::to_integer<std::uint8_t>(store.data[at - store.at]);
  }
  return std::to_integer<std::uint8_t>(live_[at]);
}

void Machine::lay(int lane) {
  for (const Id id : buffers_[static_cast<std::size_t>(lane)]) {
    const Entry& store = entries_[id];
    laid_.emplace_back(store.at, std::vector<std::byte>(live_ + store.at, live_ + store.at + store.bytes));
    std::memcpy(live_ + store.at, store.data.data(), store.bytes);
  }
}

void Machine::lift() {
  for (; !laid_.empty(); laid_.pop_back()) {
    const auto& [at, bytes] = laid_.back();
    std::memcpy(live_ + at, bytes.data(), bytes.size());
  }
}

void Machine::set_pc(int process, int value) {
  log_.push_back(
      {Change::pc_kind, static_cast<std::uint8_t>(process), 0, static_cast<std::uint64_t>(pcs_[process])});
  pcs_[process] = value;
}

void Machine::undo_to(std::size_t mark) {
  for (; log_.size() > mark; log_.pop_back()) {
    const Change& change = log_.back();
    if (change.kind == Change::word_kind) {
      hash_.toggle(change.at, word_of(live_, change.at));
      hash_.toggle(change.at, change.old);
      word_of(live_, change.at) = word_of(shadow_, change.at) = change.old;
    } else if (change.kind == Change::pc_kind) {
      pcs_[change.which] = static_cast<int>(change.old);
    } else {
      buffers_[change.which] = std::move(saved_buffers_.back());
      saved_buffers_.pop_back();
    }
  }
}

Hash Machine::hash() const {
  Hash h = hash_;
  for (int p = 0; p < most_processes; ++p)
    h.toggle((std::uint64_t{1} << 41) + static_cast<std::uint64_t>(p), static_cast<std::uint64_t>(pcs_[p]));
  for (std::size_t lane = 0; lane < buffers_.size(); ++lane) {
    std::uint64_t place = (std::uint64_t{1} << 42) + (lane << 20);
    for (const Id id : buffers_[lane]) h.toggle(place++, id + 1u);
  }
  return h;
}

}  // namespace sluice::protocol
