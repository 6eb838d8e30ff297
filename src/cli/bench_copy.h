// The yardstick of the bench: the same bytes by plain copies, all ranks at once, with as many workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace sluice::cli {

// Memory that every rank can reach: one window of `window_bytes` per rank, one behind the other.
struct CopyWindows {
  std::byte* data = nullptr;
  std::size_t window_bytes = 0;  // a multiple of the page size
  int ranks = 1;

  std::byte* of(int rank) const { return data + static_cast<std::size_t>(rank) * window_bytes; }
};

struct CopyWork {
  CopyWindows windows;
  int rank = 0;
  std::size_t row_bytes = 0;  // a multiple of 16
  std::int64_t rows = 0;      // to move: bytes_recv_max / row_bytes
  std::int64_t tokens = 0;
  const std::byte* own = nullptr;  // dispatch: the rank's T rows, read round and round
  std::byte* home = nullptr;       // combine: T rows to store
};

// Window that `rows` rows of a case need.
std::size_t copy_window_bytes(bool combine, std::int64_t rows, std::size_t row_bytes, int ranks);

enum class CopyForm {
  stream,   // stores past the caches
  library,  // memcpy, which chooses for itself
  bulk,     // a GPU's bulk copies
};

// What one rank measures beside an operation: a plain copy of the same bytes, in one form or several.
class Yardstick {
 public:
  virtual ~Yardstick() = default;
  virtual std::vector<CopyForm> forms() const = 0;
  // Wakes what run() needs.
  virtual void prepare(CopyForm form) = 0;
  // Calls `begun` when this rank's copy has been started, and returns when it has ended, seen by every rank.
  virtual void run(const std::function<void()>& begun) = 0;
};

// dispatch: copies `rows` rows from own memory into the next rank's window.
void copy_out(const CopyWork& work, CopyForm form, int worker, int workers);

// combine: reads `rows` rows out of the peers' windows and stores `tokens` rows: each output row is the
// last of the rows that were read for it.
void copy_home(const CopyWork& work, CopyForm form, int worker, int workers);

// `workers` threads, the caller's included, that do one part each.
class CopyTeam final : public Yardstick {
 public:
  CopyTeam(const CopyWork& work, bool combine, int workers);
  ~CopyTeam() override;
  std::vector<CopyForm> forms() const override { return {CopyForm::stream, CopyForm::library}; }
  void prepare(CopyForm form) override;
  void run(const std::function<void()>& begun) override;

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace sluice::cli
