// `sluice bench --late` and `--trace`: who waited for whom, and how long. Machines are busy: a figure that is off is measured
// again; a program that tells it wrong is off every time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "cli/program.h"

namespace sluice::cli::testing {
namespace {

using ::testing::HasSubstr;
using nlohmann::json;

constexpr int attempts = 8;

bool holds_once(const std::function<bool()>& holds) {
  for (int i = 0; i < attempts; ++i) {
    if (holds()) return true;
    if (::testing::Test::HasFailure()) return false;
  }
  return false;
}

std::vector<json> bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "--json", "--tokens", "32", "--hidden", "512"});
  const Ran ran = run_program(arguments);
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  return ran.lines();
}

// All but rank 1 have waited 5 ms +-10 % for it, and nobody for anybody else.
bool all_waited_for_rank_1(const json& line) {
  const json& matrix = line["wait_for"];
  for (std::size_t waiter = 0; waiter < matrix.size(); ++waiter) {
    for (std::size_t peer = 0; peer < matrix.size(); ++peer) {
      const double us = matrix[waiter][peer];
      const bool late = peer == 1 && waiter != 1;
      if (late ? us < 4500 || us > 5500 : us > 500) return false;
    }
  }
  return true;
}

void expect_5_ms_shown(const std::string& ranks, const std::string& launch, const std::string& side) {
  json line;
  const bool shown = holds_once([&] {
    const auto lines = bench({"--ranks", ranks, "--launch", launch, "--late", "1:5", "--late-side", side, "--op", "dispatch"});
    if (lines.size() != 1) return false;
    line = lines[0];
    EXPECT_EQ(line["late"], "1:5:" + side);
    EXPECT_EQ(line["wait_for"].size(), static_cast<std::size_t>(std::stoi(ranks)));
    EXPECT_GT(line["move_us"].get<double>(), 0);
    // A rank's time begins with its call, so those that were in time have the delay in theirs.
    return all_waited_for_rank_1(line) && line["wait_us"] > 4500 && line["p50_us"] > 4500;
  });
  EXPECT_TRUE(shown) << ranks << " ranks as " << launch << ", " << side << ": " << line;
}

TEST(bench_late, a_rank_that_is_5_ms_late_is_waited_for_5_ms_by_all_others_and_nobody_else_is) {
  for (const char* ranks : {"2", "4", "8"}) {
    for (const char* launch : {"threads", "processes"}) expect_5_ms_shown(ranks, launch, "host");
  }
}

// The late rank takes a processor from the others, which come late themselves when there is none for them.
TEST(bench_late, a_rank_whose_device_works_for_5_ms_is_waited_for_too) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "there is one processor, and two ranks want one each";
  for (const char* launch : {"threads", "processes"}) expect_5_ms_shown("2", launch, "device");
}

TEST(bench_late, a_combine_tells_its_waits_too) {
  json line;
  EXPECT_TRUE(holds_once([&] {
    const auto lines = bench({"--ranks", "3", "--late", "1:5", "--op", "combine"});
    line = lines.empty() ? json() : lines[0];
    return lines.size() == 1 && all_waited_for_rank_1(line);
  })) << line;
}

// 9 of 10 tokens go to the expert of rank 0.
TEST(bench_late, rows_for_one_rank_show_as_moving_and_not_as_waiting) {
  const TemporaryFolder folder;
  std::string text;
  for (int t = 0; t < 4000; ++t) text += std::to_string(t) + (t % 10 == 0 ? ",1,1\n" : ",0,1\n");
  write_file(folder.file("skew.csv"), text);
  json line;
  EXPECT_TRUE(holds_once([&] {
    const Ran ran = run_program({"bench", "--json", "--tokens", "2000", "--hidden", "4096", "--op", "dispatch", "--late", "1:0",
                                 "--routing", folder.file("skew.csv")});
    line = ran.lines().at(0);
    const double wait = std::max(line["wait_for"][0][1].get<double>(), line["wait_for"][1][0].get<double>());
    return wait < line["move_us"].get<double>() / 4;
  })) << line;
}

TEST(bench_late, nobody_late_and_nothing_traced_leaves_the_fields_null) {
  const auto plain = bench({"--iters", "3", "--op", "dispatch"});
  ASSERT_EQ(plain.size(), 1u);
  for (const char* field : {"late", "wait_us", "move_us", "wait_for"}) EXPECT_TRUE(plain[0].at(field).is_null()) << field;
}

TEST(bench_late, traces_lie_in_the_folder_that_was_named) {
  const TemporaryFolder folder;
  const auto files = [&] {
    const auto all = std::filesystem::directory_iterator(folder.file("traces"));
    return std::distance(begin(all), end(all));
  };
  const auto lines = bench({"--iters", "3", "--ranks", "3", "--trace", folder.file("traces"), "--op", "dispatch"});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0]["late"].is_null());
  EXPECT_EQ(lines[0]["wait_for"].size(), 3u);
  EXPECT_TRUE(lines[0]["wait_us"].is_number());
  EXPECT_EQ(files(), 3);
  EXPECT_EQ(run_program({"demo", "--ranks", "2", "--tokens", "16", "--trace", folder.file("traces")}).code, 0);
  EXPECT_EQ(files(), 5);
  EXPECT_EQ(run_program({"trace", "merge", folder.file("traces"), "-o", folder.file("t.json")}).code, 0);
}

TEST(bench_late, people_are_told_who_waited_for_whom) {
  const Ran ran = run_program({"bench", "--tokens", "8", "--hidden", "64", "--iters", "3", "--launch", "threads", "--late", "0:0.5"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("late: 0:0.5:host; in the median iteration the longest wait was "));
  EXPECT_THAT(ran.out, HasSubstr("a rank (down) waited for a rank (across), median us:\n              r0       r1\n     r0      0.0"));
}

TEST(bench_late, misuse_is_2_and_a_sentence) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--late", "5"}, "--late 5 is not RANK:MS, a rank and the milliseconds, at most 60000, that it is late\n"},
      {{"--late", "1:"}, "--late 1: is not RANK:MS"},
      {{"--late", ":5"}, "--late :5 is not RANK:MS"},
      {{"--late", "1:-1"}, "--late 1:-1 is not RANK:MS"},
      {{"--late", "1:nan"}, "--late 1:nan is not RANK:MS"},
      {{"--late", "1:5x"}, "--late 1:5x is not RANK:MS"},
      {{"--late", "1:60001"}, "--late 1:60001 is not RANK:MS"},
      {{"--late", "2:3", "--ranks", "2"}, "--late 2:3: there is no rank 2, only 0 to 1\n"},
      {{"--late", "1:5", "--late-side", "hosst"}, "--late-side hosst is not one of host, device; did you mean host?"},
      {{"--late-side", "host"}, "say which and how much with --late RANK:MS\n"},
      {{"--late", "1:5", "--engine", "cuda"}, "--late wants --engine cpu; operations of the CUDA engine are not traced in this version\n"},
      {{"--trace", "x", "--engine", "cuda"}, "--trace wants --engine cpu; operations of the CUDA engine are not traced"},
      {{"--offload", "polite"}, "--offload does not exist yet in this version\n"}};
  for (const auto& [flags, sentence] : cases) {
    std::vector<std::string> arguments{"bench"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Ran ran = run_program(arguments);
    EXPECT_EQ(ran.code, 2) << sentence;
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(sentence));
  }
  EXPECT_THAT(run_program({"demo", "--trace", "x", "--engine", "cuda"}).err, HasSubstr("--trace wants --engine cpu"));
}

}  // namespace
}  // namespace sluice::cli::testing
