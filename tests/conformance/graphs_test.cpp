// C2 on engines with streams: bounded calls in graphs, and calls that run in the caller's stream.
#if defined(SLUICE_CUDA)

#include <random>

#include "drive.h"
#include "gpu.h"
#include "registry.h"

namespace conformance {
namespace {

// What `body` gives to the stream, to be run any number of times.
class Graph {
 public:
  template <class Body>
  Graph(const CallersStream& stream, Body&& body) {
    // Ranks are threads that capture at once; in global mode each would forbid the others to.
    expect(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    body();
    cudaGraph_t graph = nullptr;
    expect(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
    expect(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(graph);
  }
  ~Graph() { cudaGraphExecDestroy(exec_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void run(const CallersStream& stream) const { expect(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

Recipe bounded(const At& at, std::uint64_t seed, Layout layout) {
  Recipe recipe = small_recipe(at.ranks, seed);
  recipe.call.layout = layout;
  recipe.call.counts = Counts::bounded;
  return recipe;
}

// One captured dispatch and combine of a problem, in caller's memory that stays in place.
struct Captured {
  std::unique_ptr<Brought> brought;
  sluice::DispatchResult sent;
  sluice::CombineResult home;
  std::unique_ptr<Graph> graph;
};

constexpr int graphs_at_once = 3;

PROMISE(C2, bounded_calls_run_from_graphs_in_any_order, {{1, 2}, Where::threads}) {
  if (at.place.engine == "cpu") GTEST_SKIP() << "the CPU engine has no graphs: needs the CUDA engine";
  const int rounds = long_runs() ? 3000 : 200;
  std::vector<std::unique_ptr<Job>> jobs;
  for (int g = 0; g < graphs_at_once; ++g) {
    jobs.push_back(std::make_unique<Job>(bounded(at, 60 + static_cast<std::uint64_t>(g), layouts[g])));
  }
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(jobs[0]->problem, self.engine);
    options.arena_bytes = 256 << 20;
    sluice::Communicator comm(self.group, options);
    const CallersStream stream;
    std::vector<Captured> captured(graphs_at_once);
    for (int g = 0; g < graphs_at_once; ++g) {
      const Job& job = *jobs[static_cast<std::size_t>(g)];
      Captured& one = captured[static_cast<std::size_t>(g)];
      round_trip(comm, job, self.rank, {});
      one.brought = bring(job.problem, self.rank);
      self.group.barrier();
      one.graph = std::make_unique<Graph>(stream, [&] {
        one.sent = comm.dispatch(one.brought->args, stream.handle());
        sluice::CombineArgs args;
        args.rows = one.sent.rows;
        args.route = one.sent.route;
        one.home = comm.combine(args, stream.handle());
      });
      expect_error<sluice::ArgumentError>([&] { one.sent.ready.wait(); }, {"captured into a graph"});
      expect_error<sluice::ArgumentError>([&] { one.home.ready.query(); }, {"captured into a graph"});
    }
    // The same calls without a graph give what every run of it must give.
    std::vector<Bytes> sums;
    for (int g = 0; g < graphs_at_once; ++g) {
      const Captured& one = captured[static_cast<std::size_t>(g)];
      const sluice::DispatchResult sent = comm.dispatch(one.brought->args, stream.handle());
      sluice::CombineArgs args;
      args.rows = sent.rows;
      args.route = sent.route;
      const sluice::CombineResult home = comm.combine(args, stream.handle());
      home.ready.wait();
      sums.push_back(tight(home.rows));
    }
    std::mt19937 random(7);  // the same order on every rank
    for (int round = 0; round < rounds; ++round) {
      const auto g = static_cast<std::size_t>(random() % graphs_at_once);
      overwrite(captured[g].home.rows, std::uint8_t{0xab});
      captured[g].graph->run(stream);
      if (random() % 4 == 0) {
        stream.wait();
        ASSERT_EQ(tight(captured[g].home.rows), sums[g]) << "graph " << g << ", round " << round;
      }
      if (random() % 16 == 0) {
        stream.wait();
        round_trip(comm, *jobs[g], self.rank, {});
      }
    }
    stream.wait();
    captured.clear();
    round_trip(comm, *jobs[0], self.rank, {});
  });
}

// New data between the runs, new ids too.
PROMISE(C2, a_graph_reads_its_inputs_when_it_runs, {{1, 2}, Where::threads}) {
  if (at.place.engine == "cpu") GTEST_SKIP() << "the CPU engine has no graphs: needs the CUDA engine";
  const Job job(bounded(at, 70, Layout::packed));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const CallersStream stream;
    const auto brought = bring(job.problem, self.rank);
    sluice::DispatchResult sent;
    self.group.barrier();
    const Graph graph(stream, [&] { sent = comm.dispatch(brought->args, stream.handle()); });
    std::mt19937 random(11);
    for (int round = 0; round < 20; ++round) {
      for (std::byte& byte : brought->rows) byte = static_cast<std::byte>(random());
      if (!brought->ids32.empty()) std::rotate(brought->ids32.begin(), brought->ids32.begin() + job.problem.call.topk, brought->ids32.end());
      if (!brought->ids64.empty()) std::rotate(brought->ids64.begin(), brought->ids64.begin() + job.problem.call.topk, brought->ids64.end());
      self.group.barrier();
      graph.run(stream);
      stream.wait();
      const Bytes by_graph = tight(sent.rows);
      const std::vector<std::int64_t> rows = elements_of<std::int64_t>(sent.num_rows);
      const sluice::DispatchResult again = comm.dispatch(brought->args, stream.handle());
      again.ready.wait();
      ASSERT_EQ(rows, elements_of<std::int64_t>(again.num_rows));
      const Bytes by_call = tight(again.rows);
      const auto bytes = static_cast<std::size_t>(rows[0] * again.rows.strides[0]) * static_cast<std::size_t>(sluice::size_of(again.rows.dtype));
      ASSERT_EQ(std::memcmp(by_graph.data(), by_call.data(), bytes), 0) << "round " << round;
      self.group.barrier();
    }
  });
}

PROMISE(C2, what_cannot_be_captured_is_one_error_and_the_graph_stays_empty, {{1, 2}, Where::threads}) {
  if (at.place.engine == "cpu") GTEST_SKIP() << "the CPU engine has no graphs: needs the CUDA engine";
  const Job job(bounded(at, 71, Layout::packed));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const CallersStream stream;
    const auto brought = bring(job.problem, self.rank);
    self.group.barrier();
    const Graph graph(stream, [&] {
      sluice::DispatchArgs args = brought->args;
      args.counts = Counts::exact;
      expect_error<sluice::ArgumentError>([&] { comm.dispatch(args, stream.handle()); }, {"exact", "bounded"});
      args = brought->args;
      args.num_sms = -1;
      expect_error<sluice::ArgumentError>([&] { comm.dispatch(args, stream.handle()); }, {"num_sms"});
    });
    graph.run(stream);
    stream.wait();
    round_trip(comm, job, self.rank, {});
  });
}

PROMISE(F1, a_deadline_ends_a_graph_too, {{2}, Where::threads}) {
  if (at.place.engine == "cpu") GTEST_SKIP() << "the CPU engine has no graphs: needs the CUDA engine";
  const Job job(bounded(at, 72, Layout::packed));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.deadline_ms = 500;
    {
      sluice::Communicator comm(self.group, options);
      const CallersStream stream;
      const auto brought = bring(job.problem, self.rank);
      sluice::DispatchResult sent;
      self.group.barrier();
      const Graph graph(stream, [&] { sent = comm.dispatch(brought->args, stream.handle()); });
      for (int i = 0; i < 2; ++i) graph.run(stream);
      stream.wait();
      self.group.barrier();
      const double began = now_ms();
      if (self.rank == 0) {
        graph.run(stream);  // rank 1 does not
        stream.wait();
        EXPECT_GT(now_ms() - began, 300);
        EXPECT_LT(now_ms() - began, 1500 * slower());
        expect_error<sluice::PeerError>([&] { comm.dispatch(brought->args, stream.handle()); }, {"rank 1"});
      }
      self.group.barrier();
    }
    sluice::Communicator next(self.group, options);
    round_trip(next, job, self.rank, {});
  });
}

PROMISE(C3, calls_in_the_streams_of_their_callers_keep_their_order, {{1, 2, 3}, Where::threads}) {
  if (at.place.engine == "cpu") GTEST_SKIP() << "the CPU engine has no streams: needs the CUDA engine";
  const Job job(bounded(at, 73, Layout::packed));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const CallersStream streams[2];
    const auto brought = bring(job.problem, self.rank);
    for (int round = 0; round < 40; ++round) {
      const CallersStream& stream = streams[round % 2];
      sluice::DispatchArgs args = brought->args;
      args.run_on = round % 3 == 2 ? sluice::RunOn::own_lane : sluice::RunOn::callers_stream;
      const sluice::DispatchResult sent = comm.dispatch(args, stream.handle());
      if (args.run_on == sluice::RunOn::callers_stream) {
        stream.wait();  // the result is there when the stream is done
        EXPECT_TRUE(sent.ready.query());
      }
      check_dispatch(job, self.rank, sent, *brought);
    }
  });
}

}  // namespace
}  // namespace conformance

#endif
