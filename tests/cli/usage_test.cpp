// Help, bad usage, exit codes and JSON of every command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/program.h"

namespace sluice::cli::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* commands[] = {"demo", "bench", "check", "info", "run", "routing", "trace"};

TEST(usage, help_everywhere) {
  const Ran all = run_program({"--help"});
  EXPECT_EQ(all.code, 0);
  for (const char* command : commands) {
    EXPECT_THAT(all.out, HasSubstr(command));
    const Ran ran = run_program({command, "--help"});
    EXPECT_EQ(ran.code, 0) << command;
    EXPECT_THAT(ran.out, HasSubstr("Usage")) << command;
    EXPECT_EQ(ran.err, "");
  }
  EXPECT_THAT(run_program({"trace", "merge", "--help"}).out, HasSubstr("--output"));
  EXPECT_THAT(run_program({"--version"}).out, HasSubstr("sluice 0."));
}

TEST(usage, help_says_how_many_ranks_there_are_by_default) {
  EXPECT_THAT(run_program({"demo", "--help"}).out, HasSubstr("Number of ranks [4;"));
  EXPECT_THAT(run_program({"bench", "--help"}).out, HasSubstr("Number of ranks [2;"));
}

TEST(usage, help_tells_the_defaults_of_engine_operations_and_capacity) {
  for (const char* command : {"demo", "bench", "check"})
    EXPECT_THAT(run_program({command, "--help"}).out, HasSubstr("Engine [cpu]")) << command;
  const std::string help = run_program({"bench", "--help"}).out;
  EXPECT_THAT(help, HasSubstr("Operations to measure, separated by commas"));
  EXPECT_THAT(help, HasSubstr("0 = the most that may come [0;"));
}

TEST(usage, info_takes_a_shape_only_to_tell_its_size) {
  const Ran ran = run_program({"info", "--tokens", "8"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, ::testing::HasSubstr("--tokens says what --size is to tell of"));
  EXPECT_EQ(run_program({"info", "--json"}).code, 0);
}

TEST(usage, help_of_info_shows_the_flags_that_change_what_it_prints) {
  const std::string help = run_program({"info", "--help"}).out;
  EXPECT_THAT(help, HasSubstr("--hidden"));
  EXPECT_THAT(help, HasSubstr("Number of ranks [2]\n"));  // it has no --launch env
  for (const char* flag : {"--iters", "--cached", "--op", "--workers"})
    EXPECT_THAT(help, ::testing::Not(HasSubstr(flag)));
  EXPECT_EQ(run_program({"info", "--size", "--tokens", "8", "--iters", "3", "--op", "combine"}).code, 0);
}

struct Case {
  std::vector<std::string> arguments;
  std::string suggestion;
};

void expect_bad_usage(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Ran ran = run_program(c.arguments);
    std::string shown;
    for (const auto& word : c.arguments) shown += word + " ";
    EXPECT_EQ(ran.code, 2) << shown << ran.err;
    EXPECT_EQ(ran.out, "") << shown;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << shown << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(c.suggestion)) << shown;
  }
}

TEST(usage, bad_usage_is_2_one_sentence_and_the_nearest_flag) {
  expect_bad_usage({
      {{}, "demo"},
      {{"demmo"}, "demo"},
      {{"bench", "--token", "5"}, "--tokens"},
      {{"bench", "--hiden=5"}, "--hidden"},
      {{"demo", "--rank", "3"}, "--ranks"},
      {{"check", "--jsn"}, "--json"},
      {{"info", "--siz"}, "--size"},
      {{"routing", "--lik", "uniform", "-o", "x"}, "--like"},
      {{"routing", "--like", "unifrm", "-o", "/tmp/never"}, "uniform"},
      {{"demo", "--launch", "thread"}, "threads"},
      {{"bench", "--tokens", "x"}, "--tokens"},
      {{"bench", "--tokens", "-3"}, "--tokens"},
      {{"bench", "--seed", "-5"}, "--seed"},
      {{"routing", "--like", "uniform", "--seed=-5", "-o", "/tmp/never"}, "--seed"},
      {{"bench", "--layout", "pakced"}, "packed"},
      {{"bench", "--late", "5"}, "--late"},
      {{"bench", "--overlap"}, "--overlap"},
      {{"bench", "--overlap", "gemm"}, "it wants --engine cuda"},
      {{"bench", "--overlap", "gemm", "--engine", "cpu"}, "it wants --engine cuda"},
      {{"bench", "--overlap", "gemm", "--engine", "cuda", "--tokens", "8,0"}, "--tokens 0"},
      {{"bench", "--overlap", "gem", "--engine", "cuda"}, "neither gemm nor gemm:MxNxK"},
      {{"bench", "--overlap", "gemm:", "--engine", "cuda"}, "neither gemm nor gemm:MxNxK"},
      {{"bench", "--overlap", "gemm:512x512", "--engine", "cuda"}, "neither gemm nor gemm:MxNxK"},
      {{"bench", "--overlap", "gemm:512x512x512x512", "--engine", "cuda"}, "neither gemm nor gemm:MxNxK"},
      {{"bench", "--overlap", "gemm:512x512x511", "--engine", "cuda"}, "multiples of 8"},
      {{"bench", "--overlap", "gemm:512x-512x512", "--engine", "cuda"}, "from 512 to 32768"},
      {{"bench", "--overlap", "gemm:512x512x99999999999", "--engine", "cuda"}, "from 512 to 32768"},
      {{"bench", "--overlp", "gemm"}, "--overlap"},
      {{"demo", "--ranks", "0"}, "--ranks"},
      {{"demo", "--hidden", "12"}, "--hidden"},
      {{"bench", "--hidden", "7"}, "--hidden"},
      {{"bench", "--quantise", "--hidden", "8"}, "--hidden"},
      {{"bench", "--hidden", "65536", "--dtype", "fp32"}, "--hidden"},
      {{"bench", "--hidden", "65536", "--dtype", "e4m3"}, "--hidden"},
      {{"bench", "--quantise", "--dtype", "e4m3"}, "--quantise"},
      {{"bench", "--topk", "9", "--experts", "8"}, "--topk"},
      {{"bench", "--routing", "zipf"}, "zipf"},
      {{"routing", "--like", "uniform"}, "--output"},
      {{"trace"}, "a command is missing: merge\n"},
      {{"trace", "mrege", "x"}, "did you mean merge?"},
      {{"trace", "--jsn"}, "unknown flag --jsn\n"},
      {{"trace", "merge"}, "DIR is required"},
      {{"trace", "merge", "x"}, "--output"},
      {{"trace", "merge", "x", "--outpt", "y"}, "--output"},
      {{"trace", "merge", "x", "y", "-o", "z"}, "an argument is too many: y\n"},
  });
}

TEST(usage, a_wrong_value_or_number_of_values_is_told_in_plain_words) {
  expect_bad_usage({
      {{"dmeo"}, "did you mean demo?"},
      {{"demo", "extra"}, "an argument is too many: extra\n"},
      {{"bench", "--ranks", "2", "--ranks", "3"}, "--ranks is given twice\n"},
      {{"bench", "--ranks"}, "--ranks needs a whole number from 1 to 128\n"},
      {{"bench", "--ranks", "x"}, "--ranks x is not a whole number from 1 to 128\n"},
      {{"bench", "--tokens", "1e3"}, "--tokens 1e3 is not a whole number from 0 to"},
      {{"bench", "--layout"}, "--layout needs one of packed, grouped, padded\n"},
      {{"bench", "--seed", "x"}, "--seed x is not a whole number from 0 to 2^64 - 1\n"},
      {{"bench", "--seed", "99999999999999999999"}, "--seed 99999999999999999999 is not a whole number from 0 to 2^64 - 1\n"},
      {{"demo", "--seed", "1 "}, "--seed 1  is not a whole number from 0 to 2^64 - 1\n"},
      {{"bench", "--seed", ""}, "--seed is given an empty value\n"},
      {{"routing", "--seed=", "-o", "/tmp/never"}, "--seed is given an empty value\n"},
      {{"bench", "--tokens", "1,"}, "--tokens 1, has an empty item\n"},
      {{"bench", "--tokens=1,,2"}, "--tokens 1,,2 has an empty item\n"},
      {{"bench", "--op", ",combine"}, "--op ,combine has an empty item\n"},
      {{"check", "--only", "V1,"}, "--only V1, has an empty item\n"},
      {{"run", "--bogus", "true"}, "unknown flag --bogus; the flags are -n, --ranks, --no-prefix, --help\n"},
      {{"run", "-n", "2", "--ranks=3", "true"}, "the number of processes is given twice\n"},
      {{"bench", "--routing", "zipf:101"}, "--routing zipf:101: the S of zipf:S is a number from 0 to 100\n"},
      {{"bench", "--routing", "lognormal:100.5"}, "the S of lognormal:S is a number from 0 to 100\n"},
      {{"routing", "--like", "zipf:101", "-o", "/tmp/never"}, "the S of zipf:S is a number from 0 to 100\n"},
  });
}

TEST(usage, help_lists_every_model_of_routing) {
  for (const char* command : {"bench", "routing"})
    EXPECT_THAT(run_program({command, "--help"}).out,
                HasSubstr("uniform|zipf:S|lognormal:S|deepseek|olmoe|qwen|mixtral")) << command;
}

TEST(usage, two_things_cannot_both_go_to_standard_output) {
  const Ran ran = run_program({"trace", "merge", "/tmp", "-o", "-", "--json"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("-o - and --json both want standard output"));
}

TEST(usage, bad_usage_in_json_is_an_error_record_too) {
  const Ran ran = run_program({"bench", "--json", "--token", "5"});
  EXPECT_EQ(ran.code, 2);
  const auto lines = ran.lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["record"], "error");
  EXPECT_TRUE(lines[0]["rank"].is_null());
}

TEST(usage, an_unreadable_file_is_1_and_an_error_record) {
  for (const char* command : {"demo", "bench"}) {
    const Ran ran = run_program({command, "--routing", "/no/such/file.csv", "--json"});
    EXPECT_EQ(ran.code, 1) << command;
    const auto lines = ran.lines();
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0]["record"], "error");
    EXPECT_EQ(lines[0]["kind"], "FileError");
    EXPECT_THAT(lines[0]["message"].get<std::string>(), HasSubstr("/no/such/file.csv"));
  }
}

TEST(routing, writes_what_was_asked_for) {
  const TemporaryFolder folder;
  const Ran ran =
      run_program({"routing", "--like", "olmoe", "--tokens", "100", "-o", folder.file("r.csv"), "--json"});
  EXPECT_EQ(ran.code, 0);
  const auto lines = ran.lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["record"], "routing");
  EXPECT_EQ(lines[0]["experts"], 64);
  EXPECT_EQ(lines[0]["topk"], 8);
  const std::string text = read_file(folder.file("r.csv"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 101);
  EXPECT_EQ(run_program({"routing", "--like", "olmoe", "--tokens", "100", "-o", "-"}).out, text);
  EXPECT_EQ(run_program({"routing", "--like", "olmoe", "--tokens", "100", "-o", "/no/such/folder/x"}).code,
            1);
}

}  // namespace
}  // namespace sluice::cli::testing
