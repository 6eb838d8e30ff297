// F6 for trace files: they may come from anywhere and be anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sluice/errors.h>
#include <sluice/trace.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

#include "trace/file.h"
#include "trace/recorder.h"

namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class TraceFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "sluice-trace-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  static void record(const sluice::core::TraceRing& ring, int channel, std::int64_t operation) {
    std::int64_t* const words = ring.entry(channel, operation);
    for (std::int64_t i = 1; i < ring.entry_words(); ++i) words[i] = 100 * operation + i;
    words[static_cast<int>(sluice::core::TraceWord::outcome)] = static_cast<std::int64_t>(sluice::OperationTrace::Outcome::done);
    words[0] = 2 * operation + 1;
  }

  // A file of two channels with some operations, the first one's ring full.
  std::string recorded(std::int64_t slots = 4) {
    const std::string dir = folder_ / "recorded";
    sluice::trace::Recorder recorder({.engine = "cpu", .rank = 1, .ranks = 3, .channels = 2}, slots, dir);
    recorder.name("0123456789abcdef");
    for (int i = 1; i <= 6; ++i) record(recorder.ring(), 0, i);
    for (int i = 1; i <= 2; ++i) record(recorder.ring(), 1, i);
    return fs::directory_iterator(dir)->path();
  }

  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  static std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  template <class E>
  static std::string error_of(const std::string& path) {
    try {
      sluice::read_trace(path);
    } catch (const E& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
};

TEST_F(TraceFile, TellsWhoseItIsAndWhatWasKept) {
  const sluice::RankTrace trace = sluice::read_trace(recorded());
  EXPECT_EQ(trace.communicator, "0123456789abcdef");
  EXPECT_EQ(trace.rank, 1);
  EXPECT_EQ(trace.ranks, 3);
  EXPECT_EQ(trace.channels, 2);
  EXPECT_EQ(trace.process, ::getpid());
  EXPECT_EQ(trace.lost, 2);
  EXPECT_GT(trace.clock_error_ns, 0);
  EXPECT_LT(trace.clock_error_ns, 100'000);
  ASSERT_EQ(trace.operations.size(), 6u);
  for (const auto& op : trace.operations) {
    EXPECT_EQ(op.arrived_ns.size(), 3u);
    EXPECT_GT(op.called_ns, 100 * op.operation);
    EXPECT_EQ(op.outcome, sluice::OperationTrace::Outcome::done);
  }
}

TEST_F(TraceFile, IsAsLargeAsTheOptionsSay) {
  EXPECT_LE(fs::file_size(recorded(4096)), 2 * 4096 * (128 + 24 * 3) + 132 * 1024);
}

TEST_F(TraceFile, EveryRecorderHasOneOfItsOwn) {
  for (int i = 0; i < 3; ++i) {
    sluice::trace::Recorder({.engine = "cpu", .rank = 0, .ranks = 1, .channels = 1}, 1, folder_ / "many");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "many"), {}), 3);
}

TEST_F(TraceFile, AnythingElseIsRefusedInOneSentence) {
  EXPECT_THAT(error_of<sluice::SystemError>(folder_ / "absent"), HasSubstr("cannot be read"));
  EXPECT_THAT(error_of<sluice::ArgumentError>(folder_), HasSubstr("it is no ordinary file"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of<sluice::ArgumentError>(folder_ / "pipe"), HasSubstr("it is no ordinary file"));
  EXPECT_THAT(error_of<sluice::SystemError>("/proc/self/mem"), HasSubstr("cannot be read"));
  EXPECT_THAT(error_of<sluice::ArgumentError>(write("empty", "")), HasSubstr("shorter than a header"));
  EXPECT_THAT(error_of<sluice::ArgumentError>(write("text", std::string(10'000, 'x'))), HasSubstr("not a trace of Sluice"));
  const std::string whole = bytes_of(recorded());
  EXPECT_THAT(error_of<sluice::ArgumentError>(write("cut", whole.substr(0, whole.size() - 1))), HasSubstr("shorter than its header says"));
}

TEST_F(TraceFile, TimesThatNoClockTellsAreZero) {
  std::string bytes = bytes_of(recorded());
  sluice::trace::FileHeader header;
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof(header));
  header.copies = 2;
  header.made_ns = header.made_unix_ns = std::numeric_limits<std::int64_t>::max();
  header.clock_error_ns = -1;
  std::memcpy(bytes.data(), &header, sizeof(header));
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  const sluice::trace::CopyEntry copies[2] = {{0, most, most, 0}, {500, 100, -1, 1}};
  std::memcpy(bytes.data() + sluice::trace::copies_offset(header), copies, sizeof(copies));
  const sluice::RankTrace trace = sluice::read_trace(write("times", bytes));
  EXPECT_EQ(trace.made_ns, 0);
  EXPECT_EQ(trace.made_unix_ns, 0);
  EXPECT_EQ(trace.clock_error_ns, 0);
  ASSERT_EQ(trace.copies.size(), 2u);
  for (const auto& copy : trace.copies) {
    EXPECT_EQ(copy.end_ns, copy.begun_ns);
    EXPECT_EQ(copy.bytes, 0);
  }
}

// Whatever bytes are changed: a sentence, or a trace of a possible shape.
TEST_F(TraceFile, SurvivesAnyChange) {
  const std::string whole = bytes_of(recorded());
  std::mt19937_64 random(7);
  int read = 0, refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = whole;
    const bool header = i % 2 == 0;
    for (int n = 0; n < 3; ++n) {
      const std::size_t at = random() % (header ? 256 : bytes.size());
      bytes[at] = static_cast<char>(random());
    }
    try {
      const sluice::RankTrace trace = sluice::read_trace(write("changed", bytes));
      ++read;
      for (const auto& op : trace.operations) {
        EXPECT_EQ(op.arrived_ns.size(), static_cast<std::size_t>(trace.ranks));
        static_cast<void>(sluice::attribute(op));
      }
    } catch (const sluice::ArgumentError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
