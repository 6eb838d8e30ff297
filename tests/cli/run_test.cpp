// `sluice run`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <chrono>
#include <thread>

#include "cli/program.h"

namespace sluice::cli::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(run, gives_each_rank_its_environment_and_prefixes_its_lines) {
  const Ran ran =
      run_program({"run", "-n", "3", "--", "sh", "-c",
                   "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR; echo err >&2"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(sorted_lines(ran.out), (std::vector<std::string>{"[0] 0/3 0/3 127.0.0.1", "[1] 1/3 1/3 127.0.0.1",
                                                             "[2] 2/3 2/3 127.0.0.1"}));
  EXPECT_EQ(sorted_lines(ran.err), (std::vector<std::string>{"[0] err", "[1] err", "[2] err"}));
}

TEST(run, two_jobs_have_two_ports) {
  const Ran a = run_program({"run", "-n", "2", "sh", "-c", "echo $MASTER_PORT"});
  EXPECT_EQ(a.out.substr(4, 5), a.out.substr(a.out.find('\n') + 5, 5));
  EXPECT_GT(std::stoi(a.out.substr(4)), 0);
}

TEST(run, the_programs_own_arguments_are_its_own) {
  const Ran ran = run_program({"run", "-n1", "echo", "-n", "7", "--help", "--", "x"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "[0] 7 --help -- x\n");
}

TEST(run, exits_with_the_code_of_the_first_that_failed_and_ends_the_others) {
  const Ran ran = run_program({"run", "-n", "3", "sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 60"});
  EXPECT_EQ(ran.code, 7);
  EXPECT_LT(ran.seconds, 5);
  EXPECT_THAT(ran.err, HasSubstr("rank 1 exited with code 7"));
}

TEST(run, names_a_rank_that_had_ended_with_0_before_another_failed) {
  const Ran ran = run_program({"run", "-n", "3", "--", "sh", "-c", "[ $RANK = 1 ] || { sleep 1; exit 3; }"});
  EXPECT_EQ(ran.code, 3);
  EXPECT_THAT(ran.err, HasSubstr("exited with code 3; rank 1 had ended before, with 0\n"));
}

TEST(run, a_signal_of_a_rank_is_128_and_its_number) {
  EXPECT_EQ(run_program({"run", "-n", "2", "sh", "-c", "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 60"}).code,
            128 + SIGSEGV);
}

TEST(run, a_rank_that_ignores_sigterm_is_killed) {
  const Ran ran = run_program(
      {"run", "-n", "2", "sh", "-c", "[ $RANK = 0 ] && exit 1; trap '' TERM; while :; do sleep 1; done"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_LT(ran.seconds, 8);
}

TEST(run, processes_that_a_rank_left_behind_are_ended) {
  const TemporaryFolder folder;
  const Ran ran =
      run_program({"run", "-n", "1", "sh", "-c", "sleep 300 & echo $! > " + folder.file("pid") + "; exit 0"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_LT(ran.seconds, 5);
  const int pid = std::stoi(read_file(folder.file("pid")));
  // It has been killed; on a busy machine it may still be on its way out.
  std::string stat;
  for (int i = 0; i < 200; ++i) {
    stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    if (stat.empty() || stat.find(") Z") != std::string::npos) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << stat;
}

TEST(run, signals_are_passed_on) {
  const TemporaryFolder folder;
  const std::string ready = folder.file("ready");
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string script = "trap 'exit 5' USR1; : > " + ready + "; while :; do sleep 0.05; done";
    execl(program_path().c_str(), "sluice", "run", "-n", "1", "--", "sh", "-c", script.c_str(), nullptr);
    _exit(127);
  }
  for (int i = 0; i < 400 && access(ready.c_str(), F_OK) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  kill(pid, SIGUSR1);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 5);
}

TEST(run, a_program_that_is_not_there_is_127) {
  const Ran ran = run_program({"run", "-n", "2", "/no/such/program"});
  EXPECT_EQ(ran.code, 127);
  EXPECT_THAT(ran.err, HasSubstr("/no/such/program"));
}

TEST(run, a_line_without_end_and_long_lines_come_out) {
  const Ran ran =
      run_program({"run", "-n", "1", "sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x; printf '\\nend'"});
  EXPECT_TRUE(ran.out == "[0] " + std::string(200000, 'x') + "\n[0] end\n") << ran.out.size();
}

TEST(run, without_prefix_the_json_of_a_rank_is_json) {
  const Ran ran = run_program({"run", "-n", "3", "--no-prefix", "--", program_path(), "demo", "--launch", "env",
                               "--tokens", "8", "--experts", "5", "--topk", "2", "--hidden", "16", "--json"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  const auto lines = ran.lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["ranks"], 3);
}

// The job's launcher stands still while rank 0 exits and rank 1 dies, so that it finds both at once.
TEST(run, of_ranks_that_failed_at_once_one_that_a_signal_killed_counts) {
  const TemporaryFolder folder;
  const std::string go = folder.file("go");
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string script = "echo $$ > " + folder.file("new") + "$RANK; mv " + folder.file("new") + "$RANK " +
                               folder.file("pid") + "$RANK; while [ ! -e " + go +
                               " ]; do sleep 0.02; done; [ $RANK = 0 ] && exit 3; kill -SEGV $$";
    execl(program_path().c_str(), "sluice", "run", "-n", "2", "--", "sh", "-c", script.c_str(), nullptr);
    _exit(127);
  }
  const auto until = [](auto&& condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return condition();
  };
  const std::string pids[] = {folder.file("pid0"), folder.file("pid1")};
  EXPECT_TRUE(until([&] { return access(pids[0].c_str(), F_OK) == 0 && access(pids[1].c_str(), F_OK) == 0; }));
  kill(pid, SIGSTOP);
  write_file(go, "");
  for (const std::string& file : pids) {
    const std::string stat = "/proc/" + std::to_string(std::stoi(read_file(file))) + "/stat";
    EXPECT_TRUE(until([&] { return read_file(stat).find(") Z") != std::string::npos; }));
  }
  kill(pid, SIGCONT);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGSEGV);
}

TEST(run, only_rank_0_reads_standard_input) {
  const Ran ran = run_command({"sh", "-c", "echo hello | " + program_path() + " run -n 2 cat"});
  EXPECT_EQ(ran.out, "[0] hello\n");
}

// `$sluice` is the program, `fifo` a pipe that is open and that nobody reads.
Ran run_script(const std::string& script) {
  const TemporaryFolder folder;
  return run_command({"sh", "-c", "cd " + folder.file("") + "; sluice=" + program_path() +
                                      "; mkfifo fifo; exec 3<>fifo; " + script});
}

TEST(run, a_reader_that_stalls_holds_up_no_signal) {
  const Ran ran = run_script("$sluice run -n 1 -- yes > fifo & sleep 0.5; kill -TERM $!; wait $!");
  EXPECT_EQ(ran.code, 128 + SIGTERM);
  EXPECT_LT(ran.seconds, 10);
}

TEST(run, a_reader_that_stalls_holds_up_no_end_after_a_failure) {
  const Ran ran = run_script(
      "$sluice run -n 2 -- sh -c '[ $RANK = 0 ] && { echo $$ > pid; exec yes; }; sleep 0.5; exit 7' > fifo & "
      "while ! [ -s pid ] || [ -e /proc/$(cat pid) ]; do sleep 0.05; done; kill -TERM $!; wait $!");
  EXPECT_EQ(ran.code, 7);
  EXPECT_THAT(ran.err, HasSubstr("rank 1 exited with code 7"));
}

TEST(run, a_reader_that_takes_its_time_gets_everything) {
  const Ran ran = run_script("$sluice run -n 2 -- seq 100000 | { sleep 1; sort | uniq -c | wc -l; }");
  EXPECT_EQ(ran.out, "200000\n");
}

TEST(run, both_streams_in_one_pipe_keep_their_lines_whole) {
  const Ran ran = run_script(
      "line=$(head -c 20000 /dev/zero | tr '\\0' x); export line; "
      "$sluice run -n 2 -- sh -c 'for i in 1 2 3 4 5 6 7 8 9; do echo $line; echo $line >&2; done' 2>&1 | "
      "sort | uniq -c | tr -d x");
  EXPECT_EQ(ran.out, "     18 [0] \n     18 [1] \n");
}

TEST(run, a_reader_that_has_gone_ends_the_ranks) {
  const Ran ran = run_script("{ $sluice run -n 2 -- yes; echo $? >&2; } | head -n 1 | tail -c 2");
  EXPECT_EQ(ran.out, "y\n");
  EXPECT_EQ(ran.err, "141\n");
  EXPECT_LT(ran.seconds, 10);
}

TEST(run, output_that_cannot_be_written_is_a_failure) {
  const Ran ran = run_script("$sluice run -n 2 -- echo hello > /dev/full");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("output of the ranks could not be written and is lost: No space left"));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_EQ(run_script("$sluice run -n 1 -- sh -c 'echo hello; exit 5' > /dev/full").code, 5);
  const Ran closed = run_script("exec 3>&-; $sluice run -n 1 -- echo hello >&-");
  EXPECT_EQ(closed.code, 1);
  EXPECT_THAT(closed.err, HasSubstr("Bad file descriptor"));
  EXPECT_EQ(run_script("exec 3>&-; $sluice run -n 1 -- true <&- >&- 2>&-").code, 0);
}

TEST(run, ranks_that_ignore_sigterm_are_killed_after_a_while_or_at_the_second) {
  const std::string ignores =
      "$sluice run -n 1 -- sh -c \"trap '' TERM; : > ready; while :; do sleep 1; done\" & "
      "while ! [ -e ready ]; do sleep 0.02; done; kill -TERM $!; ";
  const Ran once = run_script(ignores + "wait $!");
  EXPECT_EQ(once.code, 128 + SIGKILL);
  EXPECT_GT(once.seconds, 2.5);
  EXPECT_LT(once.seconds, 8);
  const Ran twice = run_script(ignores + "sleep 0.2; kill -TERM $!; wait $!");
  EXPECT_EQ(twice.code, 128 + SIGKILL);
  EXPECT_LT(twice.seconds, 2.5);
}

TEST(run, what_cannot_be_said_does_not_abort) {
  const auto code = [](const std::string& rest) { return run_command({"sh", "-c", program_path() + " " + rest}).code; };
  EXPECT_EQ(code("demo --bogus 2>/dev/full"), 2);
  EXPECT_EQ(code("demo --bogus 2>&-"), 2);
  EXPECT_EQ(code("run --bogus 2>/dev/full"), 2);
  EXPECT_EQ(code("run -n 1 -- false 2>/dev/full"), 1);
}

TEST(run, bad_usage_is_2) {
  EXPECT_EQ(run_program({"run"}).code, 2);
  EXPECT_EQ(run_program({"run", "-n", "2"}).code, 2);
  EXPECT_EQ(run_program({"run", "-n", "x", "true"}).code, 2);
  EXPECT_EQ(run_program({"run", "-n", "0", "true"}).code, 2);
  EXPECT_EQ(run_program({"run", "true"}).code, 2);
  const Ran ran = run_program({"run", "--rank", "2", "true"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--ranks"));
  EXPECT_EQ(run_program({"run", "--help"}).code, 0);
}

}  // namespace
}  // namespace sluice::cli::testing
