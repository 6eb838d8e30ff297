// `sluice demo`: fields, verdict, any number of ranks, recorded decisions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>

#include "cli/program.h"

namespace sluice::cli::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json demo(std::vector<std::string> arguments, const RunOptions& options = {}) {
  arguments.insert(arguments.begin(), {"demo", "--json"});
  const Ran ran = run_program(arguments, options);
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  const auto lines = ran.lines();
  return lines.empty() ? json() : lines.back();
}

void expect_consistent(const json& d, int ranks, std::int64_t pairs) {
  EXPECT_EQ(d["record"], "demo");
  EXPECT_EQ(d["verdict"], "ok");
  EXPECT_EQ(d["ranks"], ranks);
  ASSERT_EQ(d["rows"].size(), static_cast<std::size_t>(ranks));
  for (const auto& row : d["rows"]) EXPECT_EQ(row.size(), static_cast<std::size_t>(ranks));
  EXPECT_EQ(d["rows_per_expert"].size(), d["experts"].get<std::size_t>());
  const auto counts = d["rows_per_expert"].get<std::vector<std::int64_t>>();
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), pairs);
  for (const char* stage : {"gate", "dispatch", "experts", "combine"})
    EXPECT_GE(d["stage_us"][stage].get<double>(), 0) << stage;
  EXPECT_LE(d["max_error"].get<double>(), d["tolerance"].get<double>());
}

TEST(demo, default_run_is_ok_and_short) {
  const Ran ran = run_program({"demo"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_LT(ran.seconds, 60);  // under 10 s where the machine is not shared with other tests and sanitizers
  for (const char* text : {"4 ranks", "Rows sent", "Load per rank", "Load per expert", "Verdict: ok"})
    EXPECT_THAT(ran.out, HasSubstr(text));
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
}

TEST(demo, any_number_of_ranks) {
  for (const int ranks : {1, 2, 3, 5, 8, 16}) {
    const json d =
        demo({"--ranks", std::to_string(ranks), "--tokens", "33", "--experts", "20", "--topk", "3"});
    expect_consistent(d, ranks, 33 * 3 * ranks);
    EXPECT_EQ(d["tokens"], 33);
  }
}

TEST(demo, processes_give_the_same_as_threads) {
  const json threads = demo({"--ranks", "3", "--tokens", "40", "--launch", "threads"});
  const json processes = demo({"--ranks", "3", "--tokens", "40", "--launch", "processes"});
  expect_consistent(processes, 3, 40 * 8 * 3);
  for (const char* field : {"rows", "rows_per_expert", "max_error", "tolerance"})
    EXPECT_EQ(threads[field], processes[field]) << field;
}

TEST(demo, under_sluice_run_rank_0_prints) {
  const Ran ran =
      run_program({"run", "-n", "2", program_path(), "demo", "--launch", "env", "--tokens", "40", "--json"});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  ASSERT_TRUE(ran.out.starts_with("[0] {")) << ran.out;
  EXPECT_EQ(ran.out.find("[1]"), std::string::npos);
  expect_consistent(json::parse(ran.out.substr(4)), 2, 40 * 8 * 2);
}

TEST(demo, ranks_that_do_not_all_come_are_given_up_at_the_deadline) {
  const Ran ran = run_program({"demo", "--launch", "env", "--deadline-ms", "300"},
                              {.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"},
                                               {"TORCHELASTIC_RUN_ID", std::to_string(getpid())}}});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("rank 1 did not come to the meeting within 300 ms"));
  EXPECT_LT(ran.seconds, 30);
}

TEST(demo, few_experts_no_tokens_and_one_expert) {
  expect_consistent(demo({"--ranks", "5", "--experts", "3", "--topk", "2", "--tokens", "10"}), 5, 100);
  expect_consistent(demo({"--ranks", "2", "--tokens", "0"}), 2, 0);
  expect_consistent(demo({"--ranks", "2", "--experts", "1", "--topk", "1", "--tokens", "5"}), 2, 10);
}

TEST(demo, shows_no_load_where_there_is_none_and_no_gate_where_decisions_were_recorded) {
  const Ran none = run_program({"demo", "--ranks", "1", "--launch", "env", "--tokens", "0"});
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("layer: 1 rank, from the environment, 0 tokens each, top-8 of 256 experts"));
  EXPECT_THAT(none.out, HasSubstr("No token chose an expert."));
  EXPECT_THAT(none.out, HasSubstr("gate "));
  EXPECT_EQ(none.out.find("busiest"), std::string::npos);
  EXPECT_EQ(none.out.find("e0"), std::string::npos);
  const TemporaryFolder folder;
  write_file(folder.file("one.csv"), "0,0,1\n");
  const Ran recorded = run_program({"demo", "--ranks", "1", "--routing", folder.file("one.csv")});
  EXPECT_EQ(recorded.code, 0) << recorded.err;
  EXPECT_THAT(recorded.out, HasSubstr("layer: 1 rank as a thread, 1 token each, top-1 of 1 expert,"));
  EXPECT_THAT(recorded.out, HasSubstr("dispatch "));
  EXPECT_EQ(recorded.out.find("gate "), std::string::npos);
}

TEST(demo, a_routing_file_is_shared_out_once) {
  const TemporaryFolder folder;
  ASSERT_EQ(
      run_program({"routing", "--like", "mixtral", "--tokens", "101", "-o", folder.file("m.csv.gz")}).code,
      0);
  const json d = demo({"--ranks", "4", "--routing", folder.file("m.csv.gz")});
  expect_consistent(d, 4, 202);
  EXPECT_EQ(d["experts"], 8);
  EXPECT_EQ(d["topk"], 2);
  EXPECT_EQ(d["tokens"], 26);
  expect_consistent(
      demo({"--ranks", "3", "--routing", folder.file("m.csv.gz"), "--tokens", "50", "--experts", "9"}), 3,
      300);
  EXPECT_EQ(run_program({"demo", "--routing", folder.file("m.csv.gz"), "--experts", "7"}).code, 2);
  EXPECT_EQ(run_program({"demo", "--routing", folder.file("m.csv.gz"), "--topk", "3"}).code, 2);
}

TEST(demo, says_how_many_tokens_each_rank_has_and_where_they_come_from) {
  const TemporaryFolder folder;
  const std::string file = folder.file("r.csv");
  EXPECT_EQ(run_program({"routing", "--like", "qwen", "--tokens", "51", "-o", file}).code, 0);
  const std::string shared_out = run_program({"demo", "--ranks", "2", "--routing", file}).out;
  EXPECT_THAT(shared_out, HasSubstr("25 or 26 tokens each"));
  EXPECT_THAT(shared_out, HasSubstr("decisions recorded in " + file + ".\n"));
  const std::string again = run_program({"demo", "--ranks", "2", "--routing", file, "--tokens", "40"}).out;
  EXPECT_THAT(again, HasSubstr("40 tokens each"));
  EXPECT_THAT(again, HasSubstr("whose 51 tokens are fewer: after the last the first follows."));
}

TEST(demo, a_file_may_have_more_columns_than_experts) {
  const TemporaryFolder folder;
  write_file(folder.file("half.csv"), "0,0,-1,1,0\n1,0,-1,1,0\n");
  write_file(folder.file("none.csv"), "0,-1,-1,0,0\n1,-1,-1,0,0\n2,-1,-1,0,0\n");
  for (const char* ranks : {"1", "2", "3"}) {
    const json half = demo({"--ranks", ranks, "--routing", folder.file("half.csv")});
    expect_consistent(half, std::stoi(ranks), 2);
    EXPECT_EQ(half["experts"], 1);
    EXPECT_EQ(half["topk"], 2);
    const json none = demo({"--ranks", ranks, "--routing", folder.file("none.csv")});
    expect_consistent(none, std::stoi(ranks), 0);
    EXPECT_EQ(none["experts"], 1);
  }
}

TEST(demo, weights_that_overflow_the_result_are_not_wrong_values) {
  const TemporaryFolder folder;
  write_file(folder.file("large.csv"), "0,0,1,3e38,3e38\n1,1,2,3e38,-3e38\n2,2,0,0.5,0.5\n");
  for (const char* ranks : {"1", "3"})
    expect_consistent(demo({"--ranks", ranks, "--routing", folder.file("large.csv")}), std::stoi(ranks), 6);
  const Ran ran = run_program({"demo", "--ranks", "3", "--routing", folder.file("large.csv")});
  EXPECT_THAT(ran.out, HasSubstr("values are not finite, as weights so large make them"));
  EXPECT_THAT(ran.out, HasSubstr("Verdict: ok"));
}

// Recorded decisions are no part of the project.
TEST(demo, recorded_decisions_arrive_as_their_readme_counts_them) {
  const char* const traces = std::getenv("SLUICE_TRACES");
  if (traces == nullptr || *traces == 0) GTEST_SKIP() << "SLUICE_TRACES names no folder of recorded decisions";
  const std::string folder = traces;
  const auto received = [](const json& d) {
    std::vector<std::int64_t> sums(d["rows"].size(), 0);
    for (const auto& row : d["rows"]) {
      for (std::size_t r = 0; r < sums.size(); ++r) sums[r] += row[r].get<std::int64_t>();
    }
    return sums;
  };
  const json mixtral = demo({"--ranks", "8", "--routing", folder + "/mixtral-8x7b-instruct.layer20.csv.gz"});
  EXPECT_EQ(received(mixtral), (std::vector<std::int64_t>{146, 138, 136, 78, 130, 127, 259, 150}));
  const json olmoe = demo({"--ranks", "8", "--routing", folder + "/olmoe-1b-7b-0924.layer00.csv.gz"});
  EXPECT_EQ(received(olmoe), (std::vector<std::int64_t>{3348, 2808, 2753, 2795, 2494, 2969, 2742, 2970}));
  EXPECT_EQ(olmoe["rows_per_expert"][6], 2716);
  expect_consistent(demo({"--ranks", "4", "--routing", folder + "/qwen1.5-moe-a2.7b-chat.layer12.csv.gz",
                          "--launch", "processes"}),
                    4, 4096 * 4);
}

TEST(demo, an_engine_that_is_not_there_is_an_error_record) {
  const Ran ran = run_program({"demo", "--engine", "cuda", "--json"});
  if (ran.code == 0) GTEST_SKIP() << "a CUDA engine is here";
  EXPECT_EQ(ran.code, 1);
  ASSERT_EQ(ran.lines().size(), 1u);
  EXPECT_EQ(ran.lines()[0]["record"], "error");
  EXPECT_THAT(ran.err, HasSubstr("cuda"));
}

}  // namespace
}  // namespace sluice::cli::testing
