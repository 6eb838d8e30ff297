// F7: what a trace tells.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include <unistd.h>

#include "drive.h"
#include "file_limit.h"
#include "registry.h"

namespace conformance {
namespace {

using Outcome = sluice::OperationTrace::Outcome;
using Operations = std::vector<sluice::OperationTrace>;

#define ON_A_TRACED_ENGINE() \
  if (at.place.engine != "cpu") GTEST_SKIP() << "the CUDA engine is not traced in this version"

sluice::CommunicatorOptions traced(const Problem& problem, const std::string& engine, int operations = 256) {
  sluice::CommunicatorOptions options = options_for(problem, engine);
  options.trace_operations = operations;
  return options;
}

// Of all files of a folder, by rank.
std::vector<sluice::RankTrace> read_traces(const std::string& folder) {
  std::vector<sluice::RankTrace> traces;
  for (const auto& file : std::filesystem::directory_iterator(folder)) traces.push_back(sluice::read_trace(file.path()));
  std::sort(traces.begin(), traces.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return traces;
}

// A folder for this process and those that it starts, gone at the end.
class Folder {
 public:
  Folder() {
    std::string path = std::filesystem::temp_directory_path() / "sluice-trace-XXXXXX";
    path_ = ::mkdtemp(path.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What every rank says of one operation, and what this rank may see of it in the others' words.
void check_operation(const sluice::OperationTrace& op, int rank, int ranks) {
  ASSERT_EQ(op.outcome, Outcome::done);
  ASSERT_EQ(op.arrived_ns.size(), index(ranks));
  const std::vector<std::int64_t> order{op.called_ns, op.begun_ns, op.ready_ns, op.move_begin_ns, op.move_end_ns, op.end_ns};
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end())) << "operation " << op.operation << ": " << testing::PrintToString(order);
  EXPECT_EQ(op.arrived_ns[index(rank)], op.ready_ns);
  EXPECT_EQ(op.closed_ns[index(rank)], op.move_end_ns);
  for (int r = 0; r < ranks; ++r) {
    EXPECT_LE(op.arrived_ns[index(r)], op.move_begin_ns) << "of rank " << r;
    EXPECT_GT(op.closed_ns[index(r)], op.arrived_ns[index(r)]) << "of rank " << r;
    EXPECT_LE(op.closed_ns[index(r)], op.end_ns) << "of rank " << r;
  }
  const sluice::Attribution parts = sluice::attribute(op);
  EXPECT_EQ(parts.total, op.end_ns - op.begun_ns);
  EXPECT_EQ(parts.before + parts.wait + parts.data + parts.scheduling + parts.move + parts.closing + parts.after, parts.total);
  EXPECT_EQ(std::accumulate(parts.blame.begin(), parts.blame.end(), std::int64_t{0}), parts.wait);
  EXPECT_EQ(parts.lateness[index(rank)], 0);
  EXPECT_EQ(parts.blame[index(rank)], 0);
}

// Every rank's stamps of one operation, as all ranks have them.
std::vector<std::int64_t> shared_words(const sluice::OperationTrace& op) {
  std::vector<std::int64_t> words{op.channel, op.operation, op.combine};
  words.insert(words.end(), op.arrived_ns.begin(), op.arrived_ns.end());
  words.insert(words.end(), op.closed_ns.begin(), op.closed_ns.end());
  return words;
}

PROMISE(F7, the_parts_of_every_operation_add_up_and_all_ranks_say_the_same, {{1, 2, 3, 5}}) {
  ON_A_TRACED_ENGINE();
  for (const Layout layout : layouts) {
    for (const Counts counts : {Counts::exact, Counts::bounded}) {
      Recipe recipe = small_recipe(at.ranks, 400);
      recipe.call.layout = layout;
      recipe.call.counts = counts;
      const Job job(recipe);
      run_ranks(at.place, at.ranks, [&](Rank& self) {
        sluice::Communicator comm(self.group, traced(job.problem, self.engine));
        constexpr int rounds = 4;
        for (int i = 0; i < rounds; ++i) round_trip(comm, job, self.rank, {});
        self.group.barrier();
        const auto brought = bring(job.problem, self.rank);
        comm.dispatch(brought->args).ready.wait();  // the combine before has ended too
        const Operations ops = comm.trace();
        ASSERT_EQ(ops.size(), index(2 * rounds + 1));
        std::vector<std::int64_t> words;
        for (std::size_t i = 0; i < ops.size(); ++i) {
          EXPECT_EQ(ops[i].operation, static_cast<std::int64_t>(i) + 1);
          EXPECT_EQ(ops[i].combine, i % 2 == 1);
          EXPECT_EQ(ops[i].tokens, brought->args.rows.shape[0]);
          check_operation(ops[i], self.rank, self.size);
          const std::vector<std::int64_t> more = shared_words(ops[i]);
          words.insert(words.end(), more.begin(), more.end());
        }
        const auto bytes = std::as_bytes(std::span(words));
        for (const auto& theirs : self.group.all_gather(bytes)) EXPECT_TRUE(std::ranges::equal(theirs, bytes));
      });
    }
  }
}

PROMISE(F7, rows_of_a_trace_are_those_that_went, {{2, 3}}) {
  ON_A_TRACED_ENGINE();
  const Job job(small_recipe(at.ranks, 401));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, traced(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    const auto returned = give_back(comm, job, self.rank, sent, combine_call(job.problem));
    comm.combine(returned->args).inputs_free.wait();
    const Operations ops = comm.trace();
    ASSERT_EQ(ops.size(), 2u);
    const sluice::RoutingCounts counts = comm.count(brought->args);
    for (const auto& op : ops) {
      EXPECT_EQ(op.rows_with, counts.tokens_per_rank);
      EXPECT_EQ(op.row_bytes, brought->args.rows.shape[1] * sluice::size_of(brought->args.rows.dtype));
    }
    EXPECT_EQ(ops[0].rows, sent.host.rows);
    EXPECT_EQ(ops[1].rows, std::accumulate(counts.tokens_per_rank.begin(), counts.tokens_per_rank.end(), std::int64_t{0}));
  });
}

// Medians over rounds, in milliseconds, of one rank.
struct Medians {
  std::vector<double> blame;  // [R]
  double move = 0;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Medians medians_of(const Operations& ops, std::size_t first, int ranks) {
  Medians result;
  std::vector<double> move;
  std::vector<std::vector<double>> blame(index(ranks));
  for (std::size_t i = first; i < ops.size(); ++i) {
    const sluice::Attribution parts = sluice::attribute(ops[i]);
    move.push_back(static_cast<double>(parts.move) * 1e-6);
    for (std::size_t r = 0; r < blame.size(); ++r) blame[r].push_back(static_cast<double>(parts.blame[r]) * 1e-6);
  }
  for (const auto& values : blame) result.blame.push_back(median(values));
  result.move = median(move);
  return result;
}

bool holds_on_all(Rank& self, bool mine) {
  const std::byte byte{mine};
  bool all = true;
  for (const auto& theirs : self.group.all_gather({&byte, 1})) all = all && theirs[0] != std::byte{0};
  return all;
}

// A busy machine delays ranks itself: what counts is that one of some attempts shows the delay alone.
PROMISE(F7, a_delay_of_5_ms_is_5_ms_of_wait_for_the_late_rank_on_all_others, {{2, 4, 8}}) {
  ON_A_TRACED_ENGINE();
  if (sanitized) GTEST_SKIP() << "a sanitizer changes what takes time";
  constexpr double delay_ms = 5;
  constexpr std::size_t rounds = 15;
  Recipe recipe = small_recipe(at.ranks, 402);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, traced(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    Medians seen;
    bool holds = false;
    for (int attempt = 0; attempt < 8 && !holds; ++attempt) {
      const std::size_t before = comm.trace().size();
      for (std::size_t i = 0; i < rounds; ++i) {
        self.group.barrier();
        if (self.rank == 1) sleep_ms(delay_ms);
        comm.dispatch(brought->args).ready.wait();
      }
      seen = medians_of(comm.trace(), std::min(before, index(256) - rounds), self.size);
      bool mine = true;
      for (int r = 0; r < self.size; ++r) {
        const double expected = r == 1 && self.rank != 1 ? delay_ms : 0;
        mine = mine && std::abs(seen.blame[index(r)] - expected) <= 0.1 * delay_ms;
      }
      holds = holds_on_all(self, mine);
    }
    EXPECT_TRUE(holds) << "waited, in ms, for each rank: " << testing::PrintToString(seen.blame);
  });
}

// Rank 0 sends to itself and everybody to it: it moves no more than before, and nobody is late.
PROMISE(F7, ten_times_the_data_to_one_rank_is_moving_and_not_waiting, {{2, 4}}) {
  ON_A_TRACED_ENGINE();
  if (sanitized) GTEST_SKIP() << "a sanitizer changes what takes time";
  constexpr std::int64_t tokens = 800, hidden = 4096;
  constexpr std::size_t rounds = 11;
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    const CallVector<std::uint16_t> rows(index(tokens * hidden), 0x3f80);
    sluice::CommunicatorOptions options;
    options.max_tokens = tokens;
    options.experts = self.size;
    options.topk = 1;
    options.hidden = hidden;
    options.trace_operations = 256;
    sluice::Communicator comm(self.group, options);
    const auto dispatch = [&](std::int64_t count, std::int32_t to) {
      const CallVector<std::int32_t> ids(index(count), to);
      sluice::DispatchArgs args;
      args.rows = sluice::ConstTensorView(rows.data(), DataType::bf16, count, hidden);
      args.expert_ids = sluice::ConstTensorView(ids.data(), DataType::int32, count, 1);
      args.counts = Counts::bounded;
      self.group.barrier();
      comm.dispatch(args).ready.wait();
    };
    // The last rank has ten times the rows to send, so that its move outlasts the others'.
    const bool has_more = self.rank == self.size - 1;
    bool holds = false;
    Medians seen;
    double closing = 0;
    for (int attempt = 0; attempt < 8 && !holds; ++attempt) {
      const std::int64_t from = static_cast<std::int64_t>(comm.trace().size());
      for (std::size_t i = 0; i < rounds; ++i) dispatch(has_more ? tokens : tokens / 10, 0);
      const Operations ops = comm.trace();
      seen = medians_of(ops, index(static_cast<int>(from)), self.size);
      std::vector<double> closings;
      for (std::size_t i = index(static_cast<int>(from)); i < ops.size(); ++i) {
        closings.push_back(static_cast<double>(sluice::attribute(ops[i]).closing) * 1e-6);
      }
      closing = median(closings);
      double wait = 0;
      for (const double each : seen.blame) wait += each;
      holds = holds_on_all(self, has_more ? wait < 0.3 * seen.move : closing > 2 * wait && closing > seen.move);
    }
    EXPECT_TRUE(holds) << "moved " << seen.move << " ms, then " << closing << " ms until the last rank had; waited for "
                       << testing::PrintToString(seen.blame);
  });
}

PROMISE(F7, a_ring_keeps_the_last_operations, {{2}}) {
  ON_A_TRACED_ENGINE();
  const Job job(small_recipe(at.ranks, 403));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, traced(job.problem, self.engine, 5));
    for (int i = 0; i < 6; ++i) round_trip(comm, job, self.rank, {});
    comm.dispatch(bring(job.problem, self.rank)->args).ready.wait();
    std::vector<std::int64_t> numbers;
    for (const auto& op : comm.trace()) numbers.push_back(op.operation);
    EXPECT_EQ(numbers, (std::vector<std::int64_t>{9, 10, 11, 12, 13}));
  });
}

PROMISE(F7, refused_and_failed_operations_say_so, {{2}}) {
  ON_A_TRACED_ENGINE();
  Recipe recipe = small_recipe(at.ranks, 404);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, traced(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    sluice::DispatchArgs bad = brought->args;
    if (self.rank == 0) bad.alignment = 0;
    EXPECT_THROW(comm.dispatch(bad).ready.wait(), sluice::Error);
    comm.dispatch(brought->args).ready.wait();
    comm.set_deadline_ms(100);
    self.group.barrier();
    if (self.rank == 1) sleep_ms(600);
    EXPECT_THROW(comm.dispatch(brought->args).ready.wait(), sluice::PeerError);
    std::vector<Outcome> outcomes;
    for (const auto& op : comm.trace()) outcomes.push_back(op.outcome);
    std::vector<Outcome> expected{Outcome::stopped, Outcome::done, Outcome::failed};
    if (self.rank == 1 && outcomes.size() == 2) expected.pop_back();  // it may hear of the failure before it calls
    EXPECT_EQ(outcomes, expected);
    for (const auto& op : comm.trace()) {
      const sluice::Attribution parts = sluice::attribute(op);
      EXPECT_EQ(parts.total > 0, op.outcome == Outcome::done);
    }
    self.group.barrier();
  });
}

PROMISE(F7, a_file_holds_what_the_communicator_tells, {{1, 2, 3}}) {
  ON_A_TRACED_ENGINE();
  const Job job(small_recipe(at.ranks, 405));
  const Folder folder;
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.trace_dir = folder.path() + "/made/for/it";
    std::int64_t operations = 0;
    {
      sluice::Communicator comm(self.group, options);
      for (int i = 0; i < 3; ++i) round_trip(comm, job, self.rank, {});
      comm.dispatch(bring(job.problem, self.rank)->args).ready.wait();
      operations = static_cast<std::int64_t>(comm.trace().size());
    }
    self.group.barrier();
    if (self.rank != 0) return;
    const std::vector<sluice::RankTrace> traces = read_traces(options.trace_dir);
    ASSERT_EQ(traces.size(), index(self.size));
    for (int r = 0; r < self.size; ++r) {
      const sluice::RankTrace& trace = traces[index(r)];
      EXPECT_EQ(trace.rank, r);
      EXPECT_EQ(trace.ranks, self.size);
      EXPECT_EQ(trace.engine, self.engine);
      EXPECT_EQ(trace.communicator, traces[0].communicator);
      EXPECT_EQ(trace.communicator.size(), 16u);
      EXPECT_EQ(trace.boot_id, traces[0].boot_id);
      EXPECT_EQ(trace.lost, 0);
      EXPECT_EQ(static_cast<std::int64_t>(trace.operations.size()), operations);
      for (const auto& op : trace.operations) check_operation(op, r, self.size);
    }
  });
}

// The rank that is killed had called, the other one never does.
PROMISE(F7, a_file_shows_where_a_killed_rank_stood, {{2}, Where::processes}) {
  ON_A_TRACED_ENGINE();
  const Job job(small_recipe(at.ranks, 406));
  const Folder folder;
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.trace_dir = folder.path();
    sluice::Communicator comm(self.group, options);
    round_trip(comm, job, self.rank, {});
    self.group.barrier();
    if (self.rank == 1) {
      const auto brought = bring(job.problem, self.rank);
      brought->args.counts = Counts::bounded;
      const sluice::Event ready = comm.dispatch(brought->args).ready;
      (void)ready.wait_for(300);
      ::kill(::getpid(), SIGKILL);
    }
    sleep_ms(1500);
  }, {.lost = {1}});
  const std::vector<sluice::RankTrace> traces = read_traces(folder.path());
  ASSERT_EQ(traces.size(), 2u);
  EXPECT_EQ(traces[0].operations.size(), 2u);
  ASSERT_EQ(traces[1].operations.size(), 3u);
  const sluice::OperationTrace& last = traces[1].operations.back();
  EXPECT_GT(last.called_ns, 0);
  EXPECT_EQ(last.operation, 3);
}

PROMISE(F7, a_folder_that_cannot_be_made_is_one_error_on_every_rank, {{2}}) {
  ON_A_TRACED_ENGINE();
  const Job job(small_recipe(at.ranks, 407));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    if (self.rank == 1) options.trace_dir = "/proc/no/such/folder";
    if (self.rank == 1) {
      expect_error<sluice::SystemError>([&] { sluice::Communicator(self.group, options); }, {"rank 1", "/proc/no/such/folder", "trace_dir"});
    } else {
      expect_error<sluice::PeerError>([&] { sluice::Communicator(self.group, options); }, {"rank 1", "/proc/no/such/folder"});
    }
    run_job(self, job);
  });
}

PROMISE(F7, a_trace_larger_than_a_file_may_be_is_an_error_on_every_rank, {{2}, Where::processes}) {
  ON_A_TRACED_ENGINE();
  const Job job(small_recipe(at.ranks, 411));
  const Folder folder;
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.trace_dir = folder.path();
    if (self.rank == 1) {
      const FileLimit small(4096);
      expect_error<sluice::SystemError>([&] { sluice::Communicator(self.group, options); }, {"rank 1", "cannot take", "trace_dir"});
    } else {
      expect_error<sluice::PeerError>([&] { sluice::Communicator(self.group, options); }, {"rank 1", "cannot take"});
    }
    run_job(self, job);
  });
}

PROMISE(F7, ranks_may_differ_in_what_they_trace, {{2}}) {
  ON_A_TRACED_ENGINE();
  const Job job(small_recipe(at.ranks, 408));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    if (self.rank == 0) options.trace_operations = 16;
    sluice::Communicator comm(self.group, options);
    round_trip(comm, job, self.rank, {});
    comm.dispatch(bring(job.problem, self.rank)->args).ready.wait();
    if (self.rank == 1) {
      expect_error<sluice::ArgumentError>([&] { (void)comm.trace(); }, {"trace_operations", "SLUICE_TRACE"});
      return;
    }
    for (const auto& op : comm.trace()) check_operation(op, self.rank, self.size);
  });
}

PROMISE(F7, a_trace_is_read_while_operations_run, {{2}}) {
  ON_A_TRACED_ENGINE();
  const Job job(small_recipe(at.ranks, 409));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, traced(job.problem, self.engine, 4));
    std::atomic<bool> stop{false};
    std::string wrong;
    std::thread reader([&] {
      wrong = failures_of([&] {
        while (!stop) {
          for (const auto& op : comm.trace()) {
            if (op.outcome == Outcome::done) check_operation(op, self.rank, self.size);
          }
        }
      });
    });
    for (int i = 0; i < 200 && !failed_here(); ++i) round_trip(comm, job, self.rank, {});
    stop = true;
    reader.join();
    EXPECT_EQ(wrong, "");
  });
}

}  // namespace
}  // namespace conformance
