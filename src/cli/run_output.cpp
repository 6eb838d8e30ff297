#include "cli/run_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <utility>

namespace sluice::cli {
namespace {

constexpr std::size_t full_bytes = std::size_t{256} << 10;
// A longer one is cut, so that a program that never ends its line does not take all memory.
constexpr std::size_t longest_line = std::size_t{64} << 20;
constexpr std::size_t largest_pipe = std::size_t{1} << 20;  // that a program without privileges can make

bool writable_now(int fd) {
  pollfd one{fd, POLLOUT, 0};
  return poll(&one, 1, 0) > 0;
}

}  // namespace

bool Outlet::full() const { return text_.size() - done_ >= full_bytes; }

void Outlet::add(const std::string& text) {
  if (failure_ == 0) text_ += text;
}

// Not by O_NONBLOCK: that would hold for all who share the file. A pipe that poll calls writable takes
// PIPE_BUF bytes without waiting.
void Outlet::flush() {
  while (pending() && writable_now(fd_)) {
    const ssize_t n = write(fd_, text_.data() + done_, std::min<std::size_t>(text_.size() - done_, PIPE_BUF));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;  // somebody else has made it non-blocking
    if (n < 0) {
      failure_ = errno;
      done_ = text_.size();
    } else {
      done_ += static_cast<std::size_t>(n);
    }
  }
  if (pending() && done_ < full_bytes) return;
  text_.erase(0, done_);
  done_ = 0;
}

bool same_reader(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino && !S_ISREG(of_a.st_mode);
}

LineReader::LineReader(int fd, Outlet& out, std::string prefix)
    : fd_(fd), out_(&out), prefix_(std::move(prefix)) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

LineReader::LineReader(LineReader&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      out_(other.out_),
      prefix_(std::move(other.prefix_)),
      line_(std::move(other.line_)) {}

LineReader::~LineReader() {
  if (fd_ >= 0) close(fd_);
}

bool LineReader::read_some() {
  std::array<char, 1 << 14> part;
  const ssize_t n = read(fd_, part.data(), part.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    finish();
    return false;
  }
  const char* const all = part.data() + n;
  for (const char* at = part.data(); at != all;) {
    const char* end = std::find(at, all, '\n');
    line_.append(at, end);
    at = end;
    if (end != all) {
      pass_line();
      ++at;
    } else if (line_.size() > longest_line) {
      pass_line();
    }
  }
  return true;
}

void LineReader::read_rest() {
  for (std::size_t most = largest_pipe / (1 << 14); most > 0 && fd_ >= 0 && read_some(); --most) {
  }
}

void LineReader::finish() {
  if (fd_ < 0) return;
  if (!line_.empty()) pass_line();
  close(fd_);
  fd_ = -1;
}

void LineReader::pass_line() {
  out_->add(prefix_);
  out_->add(line_);
  out_->add("\n");
  line_.clear();
}

}  // namespace sluice::cli
