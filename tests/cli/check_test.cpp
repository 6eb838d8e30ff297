// `sluice check`.
#include <gtest/gtest.h>

#include "cli/program.h"

namespace sluice::cli::testing {
namespace {

void expect_all_kept(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"check", "--json"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const Ran ran = run_program(words);
  const auto lines = ran.lines();
  ASSERT_GT(lines.size(), 20u) << ran.err;
  int counts[3] = {0, 0, 0};
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    const auto& line = lines[i];
    for (const char* field : {"promise", "name", "engine", "launch", "ranks", "status", "reason", "ms"})
      EXPECT_TRUE(line.contains(field)) << field;
    EXPECT_NE(line["status"], "fail") << line["promise"] << ": " << line["reason"];
    ++counts[line["status"] == "pass" ? 0 : line["status"] == "fail" ? 1 : 2];
    if (line["status"] == "skip") {
      EXPECT_TRUE(line["reason"].is_string()) << line["promise"];
    }
  }
  EXPECT_EQ(lines.back()["summary"], true);
  EXPECT_EQ(lines.back()["passed"], counts[0]);
  EXPECT_EQ(lines.back()["failed"], counts[1]);
  EXPECT_EQ(lines.back()["skipped"], counts[2]);
  EXPECT_EQ(ran.code, counts[1] == 0 ? 0 : 1);
}

TEST(check, every_promise_is_kept_by_threads) { expect_all_kept({"--ranks", "3", "--launch", "threads"}); }
TEST(check, every_promise_is_kept_by_processes) {
  expect_all_kept({"--ranks", "2", "--launch", "processes"});
}
TEST(check, every_promise_is_kept_by_one_rank) { expect_all_kept({"--ranks", "1"}); }

TEST(check, says_first_what_it_checks) {
  const Ran ran = run_program({"check", "--only", "S1", "--launch", "threads"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(ran.out.starts_with("2 ranks as threads, engine cpu\nS1 ")) << ran.out;
}

TEST(check, an_engine_that_is_not_there_is_1) {
  const Ran ran = run_program({"check", "--engine", "cuda", "--json"});
  if (ran.code == 0) GTEST_SKIP() << "a CUDA engine is here";
  EXPECT_EQ(ran.code, 1);
  ASSERT_EQ(ran.lines().size(), 1u);
  EXPECT_EQ(ran.lines()[0]["record"], "error");
}

}  // namespace
}  // namespace sluice::cli::testing
