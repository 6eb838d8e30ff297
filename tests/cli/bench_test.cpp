// `sluice bench` and `sluice info`: fields, values, combinations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>

#include "cli/program.h"

namespace sluice::cli::testing {
namespace {

using nlohmann::json;

constexpr const char* field_names[] = {
    "sys",    "engine",  "launch",         "op",      "ranks",      "nodes",    "tokens",      "hidden",
    "topk",   "experts", "dtype",          "layout",  "counts",     "cached",   "quantise",    "routing",
    "seed",   "iters",   "workers",        "method",  "num_sms",    "gpu_sms",  "p10_us",      "p50_us",
    "p90_us", "host_us", "bytes_recv_max", "copy_us", "copy_ratio", "wire_gbs", "logical_gbs", "overlap",
    "late",   "offload", "wait_us",        "move_us", "wait_for", "ok", "machine"};

std::vector<json> bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "--json", "--iters", "5", "--warmup", "1"});
  const Ran ran = run_program(arguments);
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  return ran.lines();
}

TEST(bench, has_every_field) {
  const auto lines = bench({"--tokens", "64", "--hidden", "256", "--ranks", "2"});
  ASSERT_EQ(lines.size(), 2u);
  for (const json& line : lines) {
    EXPECT_EQ(line["record"], "bench");
    for (const char* field : field_names) EXPECT_TRUE(line.contains(field)) << field;
    for (const char* field : {"cpu", "cores", "gpu", "gpus", "driver", "cuda", "os"})
      EXPECT_TRUE(line["machine"].contains(field)) << field;
    EXPECT_EQ(line["ok"], true);
    EXPECT_EQ(line["launch"], "processes");
    EXPECT_GT(line["p50_us"].get<double>(), 0);
    EXPECT_LE(line["p10_us"].get<double>(), line["p50_us"].get<double>());
    EXPECT_LE(line["p50_us"].get<double>(), line["p90_us"].get<double>());
    EXPECT_NEAR(line["copy_ratio"].get<double>(),
                line["copy_us"].get<double>() / line["p50_us"].get<double>(), 1e-9);
  }
  EXPECT_TRUE(lines[0]["overlap"].is_null());
  EXPECT_EQ(lines[0]["op"], "dispatch");
  EXPECT_EQ(lines[1]["op"], "combine");
}

TEST(bench, one_line_per_combination) {
  const auto lines =
      bench({"--tokens", "1,16,0", "--hidden", "64", "--op", "dispatch", "--launch", "threads"});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["tokens"], 1);
  EXPECT_EQ(lines[1]["tokens"], 16);
  EXPECT_EQ(lines[2]["tokens"], 0);
  EXPECT_EQ(lines[2]["bytes_recv_max"], 0);
  EXPECT_TRUE(lines[2]["copy_ratio"].is_null());
}

TEST(bench, values_are_right_in_every_shape) {
  for (const char* launch : {"threads", "processes"}) {
    for (const char* layout : {"packed", "grouped", "padded"}) {
      for (const char* counts : {"exact", "bounded"}) {
        const auto lines =
            bench({"--tokens", "40", "--hidden", "192", "--experts", "13", "--topk", "5", "--ranks", "3",
                   "--launch", launch, "--layout", layout, "--counts", counts, "--routing", "zipf:1"});
        ASSERT_EQ(lines.size(), 2u) << launch << layout << counts;
      }
    }
  }
}

TEST(bench, types_quantise_cached_and_alignment) {
  for (const char* dtype : {"bf16", "fp16", "fp32", "e4m3"})
    EXPECT_EQ(bench({"--tokens", "30", "--hidden", "320", "--dtype", dtype, "--launch", "threads"}).size(),
              2u);
  for (const char* dtype : {"bf16", "fp16", "fp32"}) {
    const auto lines =
        bench({"--tokens", "30", "--hidden", "320", "--dtype", dtype, "--quantise", "--launch", "threads"});
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0]["quantise"], true);
  }
  EXPECT_EQ(bench({"--tokens", "30", "--hidden", "64", "--cached", "--layout", "grouped", "--alignment", "16",
                   "--launch", "threads"})
                .size(),
            2u);
  EXPECT_EQ(bench({"--tokens", "30", "--hidden", "64", "--quantise", "--cached", "--layout", "grouped",
                   "--launch", "threads"})
                .size(),
            2u);
}

// bytes_recv_max by hand: one expert per rank, every token to both ranks.
TEST(bench, bytes_are_rows_only) {
  const auto lines = bench({"--tokens", "10", "--hidden", "64", "--experts", "2", "--topk", "2", "--ranks",
                            "2", "--launch", "threads"});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["bytes_recv_max"], 20 * 128);
  EXPECT_EQ(lines[1]["bytes_recv_max"], 20 * 128);
}

TEST(bench, a_file_may_have_more_columns_than_experts) {
  const TemporaryFolder folder;
  write_file(folder.file("half.csv"), "0,0,-1,1,0\n1,0,-1,1,0\n");
  write_file(folder.file("none.csv"), "0,-1,-1,0,0\n");
  for (const char* layout : {"packed", "grouped", "padded"}) {
    const auto half = bench({"--tokens", "6", "--hidden", "64", "--launch", "threads", "--layout", layout,
                             "--routing", folder.file("half.csv")});
    ASSERT_EQ(half.size(), 2u) << layout;
    EXPECT_EQ(half[0]["experts"], 1);
    EXPECT_EQ(half[0]["topk"], 2);
    EXPECT_EQ(half[0]["bytes_recv_max"], 12 * 128);
    const auto none = bench({"--tokens", "6", "--hidden", "64", "--launch", "threads", "--layout", layout,
                             "--routing", folder.file("none.csv")});
    ASSERT_EQ(none.size(), 2u) << layout;
    EXPECT_EQ(none[0]["bytes_recv_max"], 0);
  }
}

// Sends `signal` to rank 1 of 3 while they measure. Ran.seconds counts from there on.
Ran bench_with_signal_to_rank_1(const std::string& signal) {
  const TemporaryFolder folder;
  const std::string script = program_path() +
                             " bench --launch processes --ranks 3 --tokens 4 --hidden 64 --op dispatch --workers 1 "
                             "--iters 1000000 --deadline-ms 2000 --json & pid=$!\n"
                             "while set -- $(cat /proc/$pid/task/$pid/children); [ $# -lt 3 ]; do sleep 0.02; done\n"
                             "rank=$2\n"
                             "while set -- $(cat /proc/$rank/stat); [ ${14} -lt 30 ]; do sleep 0.02; done\n"  // it has computed
                             "kill -" +
                             signal + " $rank; : > " + folder.file("sent") + "; wait $pid";
  Ran ran = run_command({"sh", "-c", script});
  struct stat sent {};
  EXPECT_EQ(stat(folder.file("sent").c_str(), &sent), 0);
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  ran.seconds = static_cast<double>(now.tv_sec - sent.st_mtim.tv_sec) +
                1e-9 * static_cast<double>(now.tv_nsec - sent.st_mtim.tv_nsec);
  return ran;
}

TEST(bench, memory_that_there_is_not_is_refused_with_the_flags_that_help) {
  const Ran ran = run_command({"sh", "-c", "ulimit -v 4000000; exec " + program_path() + " bench --tokens 1000000"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, ::testing::HasSubstr("of memory that the ranks share failed: Cannot allocate memory; lower --tokens or --hidden"));
}

TEST(bench, a_rank_that_stands_still_is_named_soon_after_the_deadline) {
  const Ran ran = bench_with_signal_to_rank_1("STOP");
  EXPECT_EQ(ran.code, 1);
  EXPECT_GT(ran.seconds, 1.5);
  EXPECT_LT(ran.seconds, 4.5);
  const auto lines = ran.lines();
  ASSERT_EQ(lines.size(), 1u) << ran.err;
  EXPECT_EQ(lines[0]["kind"], "PeerError");
  EXPECT_THAT(lines[0]["message"].get<std::string>(), ::testing::ContainsRegex("rank 1 |ranks 1,")) << ran.err;
}

TEST(bench, a_rank_that_is_killed_ends_the_others_at_once) {
  const Ran ran = bench_with_signal_to_rank_1("KILL");
  EXPECT_EQ(ran.code, 1);
  EXPECT_LT(ran.seconds, 1.5);
  const auto lines = ran.lines();
  ASSERT_EQ(lines.size(), 1u) << ran.err;
  EXPECT_EQ(lines[0]["kind"], "Killed");
  EXPECT_EQ(lines[0]["rank"], 1);
}

TEST(bench, table_for_people) {
  const Ran ran =
      run_program({"bench", "--tokens", "8", "--hidden", "64", "--iters", "3", "--launch", "threads"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("dispatch"), std::string::npos);
  EXPECT_THAT(ran.out, ::testing::StartsWith("2 ranks as threads, "));
  EXPECT_EQ(ran.err, "");
  const auto heading = [](const char* launch) {
    return run_program({"bench", "--tokens", "8", "--hidden", "64", "--iters", "1", "--ranks", "1", "--launch", launch}).out;
  };
  EXPECT_THAT(heading("threads"), ::testing::StartsWith("1 rank as a thread, "));
  EXPECT_THAT(heading("processes"), ::testing::StartsWith("1 rank as a process, "));
  EXPECT_THAT(heading("env"), ::testing::StartsWith("1 rank, from the environment, "));
  EXPECT_THAT(heading("env"), ::testing::HasSubstr("over 1 iteration,"));
}

TEST(bench, too_small_a_capacity_is_said_in_flags) {
  for (const char* layout : {"packed", "padded"}) {
    const Ran ran = run_program({"bench", "--tokens", "8", "--hidden", "64", "--iters", "3", "--capacity", "3", "--experts", "2",
                                 "--topk", "2", "--layout", layout});
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err, ::testing::HasSubstr("no row was moved: give a larger --capacity\n")) << layout;
  }
}

TEST(bench, env_launch_prints_once) {
  const Ran ran = run_program({"run", "-n", "2", program_path(), "bench", "--launch", "env", "--tokens", "8",
                               "--hidden", "64", "--iters", "3", "--json"});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'), 2);
}

TEST(bench, padded_takes_the_room_that_the_fullest_expert_needs) {
  EXPECT_EQ(bench({"--layout", "padded", "--tokens", "1024", "--hidden", "1024", "--ranks", "2"}).size(), 2u);
}

TEST(bench, too_little_memory_is_said_in_flags) {
  const Ran ran = run_program({"bench", "--layout", "padded", "--capacity", "0", "--tokens", "100000", "--launch", "threads"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, ::testing::HasSubstr("--tokens"));
  EXPECT_THAT(ran.err, ::testing::Not(::testing::HasSubstr("max_tokens")));
}

TEST(info, has_every_field) {
  const Ran ran = run_program({"info", "--json"}, {.environment = {{"SLUICE_CHECK", "1"}}});
  EXPECT_EQ(ran.code, 0) << ran.err;
  const auto lines = ran.lines();
  ASSERT_EQ(lines.size(), 1u);
  for (const char* field :
       {"engines", "gpus", "links", "transports", "limits", "environment", "versions", "await_form"})
    EXPECT_TRUE(lines[0].contains(field)) << field;
  for (const char* field : {"sluice", "cuda", "driver", "driver_needed"})
    EXPECT_TRUE(lines[0]["versions"].contains(field)) << field;
  bool cpu = false;
  for (const auto& engine : lines[0]["engines"])
    cpu = cpu || (engine["name"] == "cpu" && engine["usable"] == true);
  EXPECT_TRUE(cpu);
  bool seen = false;
  for (const auto& variable : lines[0]["environment"]) {
    for (const char* field : {"name", "value", "default", "meaning"})
      EXPECT_TRUE(variable.contains(field)) << field;
    seen = seen || (variable["name"] == "SLUICE_CHECK" && variable["value"] == "1");
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(run_program({"info"}).code, 0);
}

TEST(info, names_the_target_that_the_environment_selects) {
  const auto cpu_with = [](const char* target) {
    const Ran ran = run_program({"info", "--json"}, {.environment = {{"SLUICE_CPU_TARGET", target}}});
    EXPECT_EQ(ran.code, 0) << ran.err;
    const auto lines = ran.lines();
    for (const auto& engine : lines.at(0)["engines"])
      if (engine["name"] == "cpu") return engine;
    return json();
  };
  const json best = cpu_with(""), lowest = cpu_with("scalar"), wrong = cpu_with("AVX9");
  EXPECT_EQ(best["usable"], true);
  EXPECT_EQ(lowest["usable"], true);
  EXPECT_THAT(lowest["detail"].get<std::string>(), ::testing::AnyOf("SCALAR", "EMU128", best["detail"].get<std::string>()));
  EXPECT_EQ(wrong["usable"], false);
  EXPECT_TRUE(wrong["detail"].is_null());
  EXPECT_THAT(wrong["reason"].get<std::string>(), ::testing::StartsWith("no SIMD target is called \"AVX9\" on this machine; choose one of "));
  EXPECT_THAT(run_program({"demo", "--tokens", "1"}, {.environment = {{"SLUICE_CPU_TARGET", "AVX9"}}}).err,
              ::testing::HasSubstr(wrong["reason"].get<std::string>()));
}

TEST(info, a_variable_cannot_steer_the_terminal) {
  const Ran ran = run_program({"info"}, {.environment = {{"RANK", "\x1b[31mX\x7f\n"}}});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, ::testing::HasSubstr("RANK = ?[31mX?? (default"));
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
}

TEST(info, names_every_variable_once) {
  const auto lines = run_program({"info", "--json"}).lines();
  ASSERT_EQ(lines.size(), 1u);
  std::vector<std::string> names;
  for (const auto& variable : lines[0]["environment"]) names.push_back(variable["name"]);
  for (const char* name : {"SLUICE_CHECK", "RANK", "TORCHELASTIC_RESTART_COUNT", "OMPI_MCA_ess_base_jobid",
                           "LOCAL_WORLD_SIZE", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_NNODES"})
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(info, size_refuses_to_look_for_the_fullest_expert_of_too_many_tokens) {
  const Ran ran = run_program({"info", "--size", "--layout", "padded", "--tokens", "16777216", "--ranks", "2"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, ::testing::EndsWith("for 2 x 16777216 tokens and 256 experts takes too long; give a --capacity\n"));
  EXPECT_LT(ran.seconds, 5);
  EXPECT_EQ(run_program({"info", "--size", "--layout", "padded", "--tokens", "16777216", "--capacity", "64"}).code, 0);
}

TEST(info, size_terms_add_up) {
  for (const char* layout : {"packed", "grouped", "padded"}) {
    const Ran ran =
        run_program({"info", "--size", "--json", "--tokens", "128", "--ranks", "4", "--layout", layout});
    EXPECT_EQ(ran.code, 0) << ran.err;
    const auto lines = ran.lines();
    ASSERT_EQ(lines.size(), 1u);
    std::int64_t sum = 0;
    for (const auto& [name, bytes] : lines[0]["terms"].items()) sum += bytes.get<std::int64_t>();
    EXPECT_EQ(lines[0]["window_bytes"], sum);
    EXPECT_LE(lines[0]["arena_bytes"].get<std::int64_t>(), sum);
  }
}

}  // namespace
}  // namespace sluice::cli::testing
