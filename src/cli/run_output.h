// What the ranks of `sluice run` print, on its way to standard output and standard error.
#pragma once

#include <cstddef>
#include <string>

namespace sluice::cli {

// An output that is written only as far as its reader takes it at once, so that a reader that stalls
// holds up nothing else.
class Outlet {
 public:
  explicit Outlet(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  // Bytes wait to be written.
  bool pending() const { return done_ < text_.size(); }
  // So many that nobody should add more yet.
  bool full() const;
  // Without effect once the output has failed.
  void add(const std::string& text);
  // Writes what can be written without waiting.
  void flush();
  // The errno that ended this output, what it still had being lost; 0: none. EPIPE: nobody reads it.
  int failure() const { return failure_; }

 private:
  int fd_;
  std::string text_;
  std::size_t done_ = 0;  // of text_
  int failure_ = 0;
};

// Whether both lead to the same pipe or terminal, where a line of one must not come into a line of the other.
bool same_reader(int a, int b);

// One stream of one rank, cut into lines that go out whole.
class LineReader {
 public:
  LineReader(int fd, Outlet& out, std::string prefix);
  LineReader(LineReader&& other) noexcept;
  LineReader& operator=(LineReader&&) = delete;
  ~LineReader();

  // -1 once the stream has ended.
  int fd() const { return fd_; }
  // May read: the stream has not ended, and the outlet takes more.
  bool wants_more() const { return fd_ >= 0 && !out_->full(); }
  // Whether there was something.
  bool read_some();
  // What lies in the pipe now, whether the outlet is full or not.
  void read_rest();

  // Nothing more is read.
  void finish();

 private:
  void pass_line();

  int fd_;
  Outlet* out_;
  std::string prefix_;
  std::string line_;
};

}  // namespace sluice::cli
