// The memory of all ranks as one block, whose every change can be undone and whose content has a hash,
// and the write buffers of the lanes: what a lane has stored and others may not see yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace sluice::protocol {

struct Hash {
  std::uint64_t a = 0, b = 0;
  friend bool operator==(const Hash&, const Hash&) = default;
  friend auto operator<=>(const Hash&, const Hash&) = default;
  // Order of what is added does not matter.
  void toggle(std::uint64_t where, std::uint64_t value);
};

// One store in a buffer. A release store becomes visible only after everything older of its lane, any
// other at any time (the same bytes: in program order).
struct Entry {
  std::uint32_t at = 0;
  std::uint32_t bytes = 0;
  bool release = false;
  bool is_reset = false;
  std::vector<std::byte> data;
  bool fenced = true;  // false: no later release waits for it

  bool overlaps(std::uint32_t begin, std::uint32_t end) const { return at < end && begin < at + bytes; }
};

struct Weakness {
  bool release_overtakes_all = false;     // no fence before a signal
  bool release_overtakes_resets = false;  // resets not ordered before a signal
};

class Machine {
 public:
  using Id = std::uint32_t;  // of an interned entry
  using Buffer = std::vector<Id>;
  static constexpr int most_processes = 32;

  Machine(std::size_t bytes, int lanes);

  // Set-up: memory is taken in order; no undo.
  std::byte* take(std::size_t bytes, std::size_t alignment = 64);
  std::byte* base() { return live_; }
  const std::byte* visible() const { return shadow_; }
  std::uint32_t offset_of(const void* p) const {
    return static_cast<std::uint32_t>(static_cast<const std::byte*>(p) - live_);
  }
  std::size_t taken() const { return taken_; }
  bool contains(const void* p) const { return p >= live_ && p < live_ + size_; }

  // A change that everybody sees at once.
  void write(std::uint32_t at, const void* from, std::size_t bytes);
  template <class T>
  void set(T* to, const T& value) {
    write(offset_of(to), &value, sizeof value);
  }
  // What was stored past write(), by a kernel or a constructor, becomes such a change. `changed` gets the
  // words of eight bytes.
  void capture();
  void capture(const void* begin, std::size_t bytes, std::vector<std::uint32_t>& changed);

  void push(int lane, Entry entry);
  const Buffer& buffer(int lane) const { return buffers_[static_cast<std::size_t>(lane)]; }
  const Entry& entry(Id id) const { return entries_[id]; }
  bool can_commit(int lane, std::size_t index, const Weakness& weakness) const;
  void commit(int lane, std::size_t index);
  // Stores of the lane that lie in these bytes are gone: a later one has replaced them.
  void forget(int lane, std::uint32_t begin, std::uint32_t end);
  // The byte as the lane sees it: its own buffered stores count.
  std::uint8_t seen_by(int lane, std::uint32_t at) const;
  // For the time of a kernel: the lane's buffered stores lie in memory; `lift` takes them away again.
  void lay(int lane);
  void lift();

  int& pc(int process) { return pcs_[process]; }
  int pc(int process) const { return pcs_[process]; }
  void set_pc(int process, int value);

  std::size_t mark() const { return log_.size(); }
  void undo_to(std::size_t mark);
  Hash hash() const;

 private:
  struct Change {
    enum Kind : std::uint8_t { word_kind, pc_kind, buffer_kind } kind;
    std::uint8_t which;
    std::uint32_t at;
    std::uint64_t old;
  };

  std::uint64_t& word_of(std::byte* memory, std::size_t word) const {
    return *reinterpret_cast<std::uint64_t*>(memory + 8 * word);
  }
  void word_changed(std::size_t word);
  void capture_lines(std::size_t begin, std::size_t end, std::vector<std::uint32_t>* changed);
  void save_buffer(int lane);
  Id intern(Entry entry);

  std::size_t size_;
  std::size_t taken_ = 0;
  std::unique_ptr<std::byte[]> memory_, shadow_memory_;
  std::byte* live_;
  std::byte* shadow_;
  Hash hash_;
  std::vector<Buffer> buffers_;
  std::vector<Buffer> saved_buffers_;
  std::vector<Entry> entries_;
  std::map<Hash, Id> known_;
  int pcs_[most_processes] = {};
  std::vector<Change> log_;
  std::vector<std::pair<std::uint32_t, std::vector<std::byte>>> laid_;
};

}  // namespace sluice::protocol
