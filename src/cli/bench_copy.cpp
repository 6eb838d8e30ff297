#include "cli/bench_copy.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "cli/barrier.h"

namespace sluice::cli {
namespace {

constexpr std::size_t page_bytes = 4096;

#if defined(__SSE2__)
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  const std::size_t n = bytes / 16;
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m128i a = _mm_loadu_si128(in + i);
    const __m128i b = _mm_loadu_si128(in + i + 1);
    const __m128i c = _mm_loadu_si128(in + i + 2);
    const __m128i d = _mm_loadu_si128(in + i + 3);
    _mm_stream_si128(out + i, a);
    _mm_stream_si128(out + i + 1, b);
    _mm_stream_si128(out + i + 2, c);
    _mm_stream_si128(out + i + 3, d);
  }
  for (; i < n; ++i) _mm_stream_si128(out + i, _mm_loadu_si128(in + i));
}

void order_stream() { _mm_sfence(); }

// Loads every byte; the compiler may not leave a load out.
void read_row(const std::byte* from, std::size_t bytes) {
  const auto* in = reinterpret_cast<const __m128i*>(from);
  __m128i seen = _mm_setzero_si128();
  for (std::size_t i = 0; i < bytes / 16; ++i) seen = _mm_or_si128(seen, _mm_loadu_si128(in + i));
  asm volatile("" : : "x"(seen));
}
#else
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void order_stream() {}
void read_row(const std::byte* from, std::size_t bytes) {
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + i, 8);
    seen |= word;
  }
  asm volatile("" : : "r"(seen));
}
#endif

void copy_row(CopyForm form, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (form == CopyForm::stream) {
    stream_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

std::size_t copy_window_bytes(bool combine, std::int64_t rows, std::size_t row_bytes, int ranks) {
  const std::int64_t peers = combine ? std::max(1, ranks - 1) : 1;
  const auto bytes = static_cast<std::size_t>((rows + peers - 1) / peers) * row_bytes;
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

void copy_out(const CopyWork& work, CopyForm form, int worker, int workers) {
  if (work.tokens == 0) return;
  std::byte* to = work.windows.of((work.rank + 1) % work.windows.ranks);
  std::int64_t row = work.rows * worker / workers;
  const std::int64_t end = work.rows * (worker + 1) / workers;
  while (row < end) {
    // As many neighbouring rows as one copy can take.
    const std::int64_t first = row % work.tokens;
    const std::int64_t count = std::min(end - row, work.tokens - first);
    copy_row(form, to + static_cast<std::size_t>(row) * work.row_bytes,
             work.own + static_cast<std::size_t>(first) * work.row_bytes,
             static_cast<std::size_t>(count) * work.row_bytes);
    row += count;
  }
  order_stream();
}

void copy_home(const CopyWork& work, CopyForm form, int worker, int workers) {
  const int peers = std::max(1, work.windows.ranks - 1);
  const std::int64_t end = work.tokens * (worker + 1) / workers;
  for (std::int64_t t = work.tokens * worker / workers; t < end; ++t) {
    const std::int64_t begin_row = t * work.rows / work.tokens;
    const std::int64_t end_row = (t + 1) * work.rows / work.tokens;
    std::byte* to = work.home + static_cast<std::size_t>(t) * work.row_bytes;
    for (std::int64_t i = begin_row; i < end_row; ++i) {
      const int peer = static_cast<int>(i % peers);
      const int from_rank = (work.rank + 1 + peer) % work.windows.ranks;
      const std::byte* from =
          work.windows.of(from_rank) + static_cast<std::size_t>(i / peers) * work.row_bytes;
      if (i + 1 < end_row) {
        read_row(from, work.row_bytes);
      } else {
        copy_row(form, to, from, work.row_bytes);
      }
    }
    if (begin_row == end_row) std::memset(to, 0, work.row_bytes);
  }
  order_stream();
}

struct CopyTeam::Shared {
  CopyWork work;
  bool combine = false;
  int workers = 1;
  CopyForm form = CopyForm::stream;
  SharedBarrier awake{};
  SharedBarrier begin{};
  SharedBarrier end{};
  std::vector<std::jthread> helpers;

  void part(int worker) const {
    combine ? copy_home(work, form, worker, workers) : copy_out(work, form, worker, workers);
  }
  WaitFor briefly() const {
    return static_cast<unsigned>(workers) <= std::thread::hardware_concurrency() ? WaitFor::spin
                                                                                 : WaitFor::yield;
  }

  void help(int worker) {
    // Until the team is being destroyed.
    while (awake.wait(workers, WaitFor::sleep) == Met::all && begin.wait(workers, briefly()) == Met::all) {
      part(worker);
      if (end.wait(workers, briefly()) != Met::all) return;
    }
  }
};

CopyTeam::CopyTeam(const CopyWork& work, bool combine, int workers) : shared_(std::make_unique<Shared>()) {
  shared_->work = work;
  shared_->combine = combine;
  shared_->workers = workers;
  for (int w = 1; w < workers; ++w) {
    shared_->helpers.emplace_back([shared = shared_.get(), w] { shared->help(w); });
  }
}

CopyTeam::~CopyTeam() {
  // Wherever the helpers stand: an exception may have come between prepare() and run().
  for (SharedBarrier* barrier : {&shared_->awake, &shared_->begin, &shared_->end}) barrier->abandon();
}

void CopyTeam::prepare(CopyForm form) {
  shared_->form = form;
  (void)shared_->awake.wait(shared_->workers, WaitFor::sleep);  // helpers come: only we abandon
}

void CopyTeam::run(const std::function<void()>& begun) {
  (void)shared_->begin.wait(shared_->workers, shared_->briefly());
  begun();
  shared_->part(0);
  (void)shared_->end.wait(shared_->workers, shared_->briefly());
}

}  // namespace sluice::cli
