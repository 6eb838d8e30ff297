// `sluice doctor` on traces that `sluice bench` leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace sluice::cli::testing {
namespace {

using ::testing::HasSubstr;

Ran traced_bench(const std::string& folder) {
  return run_program({"bench", "--ranks", "2", "--launch", "processes", "--tokens", "64", "--hidden", "256", "--iters", "5", "--warmup", "1"},
                     {.environment = {{"SLUICE_TRACE", folder}}});
}

TEST(doctor, reaches_a_verdict_in_text_json_and_a_page) {
  const TemporaryFolder folder;
  ASSERT_EQ(traced_bench(folder.file("traces")).code, 0);
  const Ran ran = run_program({"doctor", folder.file("traces"), "--json", "--html", folder.file("page.html")});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto lines = ran.lines();
  ASSERT_EQ(lines.size(), 1u);
  const auto& record = lines[0];
  for (const char* field : {"record", "version", "command", "class", "rank", "wait_share", "blame_share", "late_us_p50", "operations", "matrix"})
    EXPECT_TRUE(record.contains(field)) << field;
  EXPECT_EQ(record["record"], "doctor");
  EXPECT_GT(record["operations"].get<int>(), 4);
  ASSERT_EQ(record["matrix"].size(), 2u);
  EXPECT_EQ(record["matrix"][1].size(), 2u);
  EXPECT_EQ(record["rank"].is_null(), record["class"] == "healthy");
  EXPECT_THAT(read_file(folder.file("page.html")), HasSubstr("</html>"));
  const Ran text = run_program({"doctor", folder.file("traces")});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, ::testing::StartsWith(record["text"].get<std::string>() + "\n"));
  const std::string verdict = record["class"];
  EXPECT_EQ(run_program({"doctor", folder.file("traces"), "--fail-on", verdict}).code, 1);
  EXPECT_EQ(run_program({"doctor", folder.file("traces"), "--fail-on", verdict == "slow_link" ? "slow_rank" : "slow_link"}).code, 0);
}

TEST(doctor, wrong_input_is_one_sentence) {
  const TemporaryFolder folder;
  const Ran none = run_program({"doctor", folder.file("none"), "--json"});
  EXPECT_EQ(none.code, 1);
  ASSERT_EQ(none.lines().size(), 1u);
  EXPECT_EQ(none.lines()[0]["record"], "error");
  EXPECT_THAT(none.err, HasSubstr("is no folder"));
  EXPECT_EQ(run_program({"doctor"}).code, 2);
  EXPECT_EQ(run_program({"doctor", "/tmp", "--fail-on", "tired"}).code, 2);
  EXPECT_THAT(run_program({"doctor", "/tmp", "--fail-on", "slow_rink"}).err, HasSubstr("slow_rank"));
}

}  // namespace
}  // namespace sluice::cli::testing
