// A process that is delayed, frozen or killed before each step of a dispatch and of a combine: its peers
// succeed with every row there, or get PeerError in time, and leave with code 0 (promises F1, F2, F8).
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sluice/errors.h>
#include <sluice/group.h>

#include "faults/fault_lane.h"

namespace sluice::faults {
namespace {

constexpr int ranks = 3, victim = 1, tokens = 4, hidden = 64, topk = 3;
constexpr int good_rounds = 2;

struct Case {
  Fault fault = Fault::none;
  bool in_combine = false;
  int step = 0;
  int deadline_ms = 60'000;
  int most_ms = 1'000;  // from the call to the error
};

enum Exit : int { fine = 0, wrong_rows = 3, wrong_sum = 4, late = 5, wrong_message = 6, wrong_error = 7 };

class Rank {
 public:
  Rank(int rank, const Case& c) : rank_(rank), case_(c), rows_(tokens * hidden, 1.0f + static_cast<float>(rank)), ids_(tokens * topk) {
    for (int i = 0; i < tokens * topk; ++i) ids_[static_cast<std::size_t>(i)] = i % topk;  // every token to every rank
    CommunicatorOptions options;
    options.max_tokens = tokens;
    options.experts = ranks;
    options.hidden = hidden;
    options.topk = topk;
    options.dtype = DataType::fp32;
    options.deadline_ms = c.deadline_ms;
    Plan plan;
    if (rank == victim) plan = {c.fault, 2 * good_rounds + c.in_combine, c.step};
    comm_ = make_communicator(Group::from_environment(), options, [&](std::unique_ptr<engine::Engine> cpu) {
      return std::make_unique<FaultEngine>(std::move(cpu), plan);
    });
  }

  int run() {
    int code = fine;
    for (int i = 0; i <= good_rounds && code == fine; ++i) code = round(i < good_rounds);
    return code;
  }

 private:
  int round(bool must_succeed) {
    began_ = std::chrono::steady_clock::now();
    try {
      DispatchArgs args;
      args.rows = {rows_.data(), DataType::fp32, tokens, hidden};
      args.expert_ids = {ids_.data(), DataType::int32, tokens, topk};
      args.counts = Counts::bounded;
      const DispatchResult sent = comm_->dispatch(args);
      sent.ready.wait();
      for (int n = 0; n < ranks * tokens; ++n) {
        if (sent.rows.as<float>()[n * hidden] != 1.0f + static_cast<float>(n / tokens)) return wrong_rows;
      }
      began_ = std::chrono::steady_clock::now();
      CombineArgs back;
      back.rows = sent.rows;
      back.route = sent.route;
      const CombineResult home = comm_->combine(back);
      home.ready.wait();
      for (int i = 0; i < tokens * hidden; ++i) {
        if (home.rows.as<float>()[i] != ranks * (1.0f + static_cast<float>(rank_))) return wrong_sum;
      }
      return fine;
    } catch (const PeerError& error) {
      if (must_succeed || case_.fault == Fault::delay) return wrong_error;
      return judge(error.what());
    }
  }

  int judge(const std::string& message) const {
    const auto took = std::chrono::steady_clock::now() - began_;
    if (took > std::chrono::milliseconds(case_.deadline_ms == 60'000 ? case_.most_ms : case_.deadline_ms + case_.most_ms)) return late;
    return rank_ == victim || message.find(fmt::format("rank {}", victim)) != std::string::npos ? fine : wrong_message;
  }

  int rank_;
  Case case_;
  std::vector<float> rows_;
  std::vector<std::int32_t> ids_;
  std::unique_ptr<core::CommunicatorState> comm_;
  std::chrono::steady_clock::time_point began_;
};

pid_t start(int rank, const Case& c, const std::string& job) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", job.c_str(), 1);
  int code = 99;
  try {
    code = Rank(rank, c).run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, error.what());
  }
  _exit(code);
}

// The exit codes of all ranks; a frozen victim is thawed once the others have left.
std::vector<int> exit_codes(const Case& c) {
  static int number = 0;
  const std::string job = std::to_string(1024 + (getpid() + 97 * ++number) % 60'000);
  std::vector<pid_t> pids;
  for (int r = 0; r < ranks; ++r) pids.push_back(start(r, c, job));
  std::vector<int> codes(ranks);
  for (const int r : {0, 2, victim}) {
    int status = 0;
    // On a busy machine the others may have given up before the victim freezes.
    do {
      if (r == victim) kill(pids[victim], SIGCONT);
      waitpid(pids[static_cast<std::size_t>(r)], &status, r == victim ? WUNTRACED : 0);
    } while (WIFSTOPPED(status));
    codes[static_cast<std::size_t>(r)] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  return codes;
}

// Steps of the scripts of core/protocol.cpp without dependencies: the strike may stand before each, or at
// the end.
constexpr int dispatch_steps = 9, combine_steps = 9;

void every_stage(Case c, int victim_code) {
  for (const bool in_combine : {false, true}) {
    for (int step = 0; step <= (in_combine ? combine_steps : dispatch_steps); ++step) {
      c.in_combine = in_combine;
      c.step = step;
      EXPECT_EQ(exit_codes(c), (std::vector<int>{fine, victim_code, fine})) << (in_combine ? "combine" : "dispatch") << ", before step " << step;
    }
  }
}

TEST(F1, a_process_that_is_late_at_any_stage_is_waited_for) { every_stage({.fault = Fault::delay}, fine); }
TEST(F2, a_process_killed_at_any_stage_is_noticed_at_once) { every_stage({.fault = Fault::kill}, 128 + SIGKILL); }
TEST(F2, a_process_out_of_memory_at_any_stage_lives_and_is_named_at_once) {
  every_stage({.fault = Fault::no_memory}, fine);
}
TEST(F2, a_process_frozen_at_any_stage_is_given_up_after_the_deadline) {
  every_stage({.fault = Fault::freeze, .deadline_ms = 200}, fine);
}

}  // namespace
}  // namespace sluice::faults
