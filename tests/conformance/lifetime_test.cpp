// C7, C8, C10 and what a communicator says of itself: life times, growth, workers, several at once.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

PROMISE(C7, arguments_may_be_dropped_right_after_the_call, {{2, 3}}) {
  Recipe recipe = small_recipe(at.ranks, 7);
  recipe.call.counts = Counts::bounded;
  recipe.call.scales = 2;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    std::weak_ptr<Brought> alive;
    sluice::DispatchResult sent;
    self.group.barrier();
    if (self.rank == 0) sleep_ms(100);  // the others' operations are still queued when their memory goes
    {
      const std::shared_ptr<Brought> brought = bring(job.problem, self.rank);
      alive = brought;
      sluice::DispatchArgs args = brought->args;
      for (sluice::ConstTensorView* view : {&args.rows, &args.scales, &args.expert_ids, &args.weights})
        view->owner = brought;
      brought->args = {};
      sent = comm.dispatch(args);
    }
    if (self.rank != 0) {
      EXPECT_FALSE(alive.expired()) << "freed while the operation is queued";
    }
    const Brought none;
    check_dispatch(job, self.rank, sent, none);
    const sluice::Route route = sent.route;
    CombineCall call = combine_call(job.problem);
    std::shared_ptr<Returned> returned = give_back(comm, job, self.rank, sent, call);
    sluice::CombineArgs args = returned->args;
    args.rows.owner = returned;
    args.weights.owner = returned;
    returned->args = {};
    sent = {};
    const sluice::CombineResult home = comm.combine(args);
    args = {};
    const std::weak_ptr<Returned> inputs = returned;
    returned.reset();
    check_combine(job, self.rank, call, home);
    // One more operation, after which nothing of the earlier ones may be held, once the lane has let go of it.
    {
      const auto brought = bring(job.problem, self.rank);
      comm.dispatch(brought->args).ready.wait();
    }
    for (int i = 0; i < 1000 && !(alive.expired() && inputs.expired()); ++i) sleep_ms(1);
    EXPECT_TRUE(alive.expired());
    EXPECT_TRUE(inputs.expired());
  });
}

// A deleter on its own, the idiom of a scope guard: its pointer is null, and it owns all the same.
PROMISE(C7, an_owner_that_stores_a_null_pointer_is_held_too, {{2}}) {
  Recipe recipe = small_recipe(at.ranks, 11);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    std::shared_ptr<Brought> brought = bring(job.problem, self.rank);
    const std::weak_ptr<Brought> alive = brought;
    if (self.rank == 0) self.group.barrier();
    sluice::DispatchArgs args = brought->args;
    brought->args = {};
    args.rows.owner = std::shared_ptr<const void>(nullptr, [brought](const void*) {});
    brought.reset();
    const sluice::DispatchResult sent = comm.dispatch(args);
    args = {};
    if (self.rank != 0) {
      EXPECT_FALSE(alive.expired()) << "let go while the operation is queued";
      self.group.barrier();
    }
    check_dispatch(job, self.rank, sent, Brought());
  });
}

PROMISE(C7, results_routes_and_events_outlive_the_communicator, {{1, 2, 3}}) {
  for (Layout layout : layouts) {
    Recipe recipe = small_recipe(at.ranks, 8);
    recipe.call.layout = layout;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::DispatchResult sent;
      sluice::CombineResult home;
      const CombineCall call = combine_call(job.problem);
      std::unique_ptr<Brought> brought;
      std::unique_ptr<Returned> returned;
      {
        sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
        brought = bring(job.problem, self.rank);
        sent = comm.dispatch(brought->args);
        returned = give_back(comm, job, self.rank, sent, call);
        home = comm.combine(returned->args);
      }
      check_dispatch(job, self.rank, sent, *brought);
      check_combine(job, self.rank, call, home);
      EXPECT_TRUE(sent.route.valid());
      sent.ready.wait();
    });
  }
}

// Of this process.
std::int64_t resident_kb() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

PROMISE(C7, nothing_grows_with_the_number_of_calls, {{2}}) {
  constexpr int rounds = 10000;
  Recipe recipe = small_recipe(at.ranks, 9);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const auto calls = [&](int n) {
      for (int i = 0; i < n; ++i) {
        brought->args.counts = Counts::bounded;
        const sluice::DispatchResult sent = comm.dispatch(brought->args);
        sluice::CombineArgs args;
        args.rows = sent.rows;
        args.route = sent.route;
        comm.combine(args).ready.wait();
      }
    };
    // Rank 0 alone counts, while the others stand still: an open folder is a descriptor, too.
    std::int64_t memory = 0, files = 0, threads = 0;
    const auto count = [&](bool again) {
      self.group.barrier();
      if (self.rank == 0 && again) {
        // A sanitizer keeps freed memory back, and so does the CUDA driver.
        if (std::getenv("SLUICE_REDUCED") == nullptr && !on_cuda()) {
          EXPECT_LE(resident_kb() - memory, 2048) << "KB of memory";
        }
        EXPECT_EQ(entries_in("/proc/self/fd"), files);
        EXPECT_EQ(entries_in("/proc/self/task"), threads);
      }
      if (self.rank == 0) {
        memory = resident_kb();
        files = entries_in("/proc/self/fd");
        threads = entries_in("/proc/self/task");
      }
      self.group.barrier();
    };
    calls(300);
    count(false);
    calls(rounds);
    count(true);
  });
}

PROMISE(C7, a_host_that_runs_far_ahead_holds_little_per_call, {{2}, Where::processes}) {
  if (on_cuda() || sanitized) GTEST_SKIP() << "measures the memory of plain processes";
  Recipe recipe = small_recipe(at.ranks, 43);
  recipe.call.counts = Counts::bounded;
  recipe.tokens = {4};
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    round_trip(comm, job, self.rank, {});
    const auto brought = bring(job.problem, self.rank);
    self.group.barrier();
    if (self.rank == 0) sleep_ms(300);
    const std::int64_t before = resident_kb();
    constexpr int pairs = 2000;
    sluice::CombineResult home;
    for (int i = 0; i < pairs; ++i) {
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      sluice::CombineArgs args;
      args.rows = sent.rows;
      args.route = sent.route;
      home = comm.combine(args);
    }
    EXPECT_LT((resident_kb() - before) / pairs, 40) << "KB per dispatch and combine that are queued";
    home.ready.wait();
  });
}

// A module that owns its communicator and the memory of its calls.
struct Module {
  std::unique_ptr<sluice::Communicator> comm;
  std::unique_ptr<Brought> brought;
  std::shared_ptr<std::atomic<bool>> gone;
  ~Module() {
    comm.reset();
    gone->store(true);
  }
};

PROMISE(C7, the_owner_of_a_view_may_own_the_communicator, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "on CUDA what an operation kept is let go by the next call of its channel";
  Recipe recipe = small_recipe(at.ranks, 44);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    const auto gone = std::make_shared<std::atomic<bool>>(false);
    auto module = std::make_shared<Module>();
    module->gone = gone;
    module->comm = std::make_unique<sluice::Communicator>(self.group, options_for(job.problem, self.engine));
    module->brought = bring(job.problem, self.rank);
    self.group.barrier();
    if (self.rank == 0) sleep_ms(100);
    {
      sluice::Communicator& comm = *module->comm;
      sluice::DispatchArgs args = module->brought->args;
      args.rows.owner = module;
      module.reset();
      comm.dispatch(args);
    }
    for (int i = 0; i < 400 && !gone->load(); ++i) sleep_ms(10.0 * slower());
    EXPECT_TRUE(gone->load()) << "the communicator waits for itself";
    self.group.barrier();
  });
}

PROMISE(C8, any_number_of_workers_gives_the_same_bytes, {{1, 2, 3}}) {
  Recipe recipe = small_recipe(at.ranks, 10);
  recipe.call.layout = Layout::grouped;
  recipe.tokens = {70, 41};
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    for (int workers : {1, 2, 3, 5}) {
      sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
      options.workers = workers;
      sluice::Communicator comm(self.group, options);
      if (!on_cuda()) {  // workers are threads of the CPU engine
        EXPECT_EQ(comm.num_sms(), workers);
      }
      for (int sms : {0, 1, 2, 3}) {
        Round round;
        round.manner.num_sms = std::min(sms, workers);
        round_trip(comm, job, self.rank, round);
      }
    }
  });
}

// One process owns all ranks, each has three communicators of different shapes and uses them in turn.
PROMISE(C10, several_communicators_of_one_rank_are_used_in_turn, {{1, 2, 4}}) {
  std::vector<Job> jobs;
  for (Layout layout : layouts) {
    Recipe recipe = small_recipe(at.ranks, 20 + static_cast<std::uint64_t>(layout));
    recipe.experts = (2 + static_cast<int>(layout)) * at.ranks;
    recipe.call.topk = 2;
    recipe.call.hidden = 32 * (1 + static_cast<int>(layout));
    recipe.call.layout = layout;
    jobs.emplace_back(recipe);
  }
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    std::vector<sluice::Communicator> comms;
    for (const Job& job : jobs) comms.emplace_back(self.group, options_for(job.problem, self.engine));
    for (int turn = 0; turn < 6; ++turn)
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        Round round;
        round.combine = combine_call(jobs[i].problem);
        round_trip(comms[i], jobs[i], self.rank, round);
      }
    comms.erase(comms.begin() + self.rank % 3);
    comms.clear();
  });
}

// Operations of two communicators in opposite order on two ranks: nothing is shared between them.
PROMISE(C10, two_communicators_may_be_called_in_opposite_orders, {{2, 3}}) {
  Recipe recipe = small_recipe(at.ranks, 30);
  recipe.call.counts = Counts::bounded;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator a(self.group, options_for(job.problem, self.engine));
    sluice::Communicator b(self.group, options_for(job.problem, self.engine));
    for (int turn = 0; turn < 20 && !failed_here(); ++turn) {
      const bool swap = self.rank % 2 == 1;
      const auto brought = bring(job.problem, self.rank);
      const sluice::DispatchResult first = (swap ? b : a).dispatch(brought->args);
      const sluice::DispatchResult second = (swap ? a : b).dispatch(brought->args);
      check_dispatch(job, self.rank, first, *brought);
      check_dispatch(job, self.rank, second, *brought);
    }
  });
}

PROMISE(C10, a_process_may_own_two_groups, {{2}, Where::threads}) {
  const Job job(small_recipe(at.ranks, 31));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Group alone = sluice::Group::threads(1).front();
    Recipe recipe;
    recipe.call.topk = 2;
    const Job own(recipe);
    sluice::Communicator mine(alone, options_for(own.problem, self.engine));
    sluice::Communicator ours(self.group, options_for(job.problem, self.engine));
    for (int turn = 0; turn < 5; ++turn) {
      round_trip(ours, job, self.rank, {});
      round_trip(mine, own, 0, {});
    }
  });
}

PROMISE(C10, a_forked_copy_is_told_that_it_is_one, {{1, 2}, Where::processes}) {
  const Job job(small_recipe(at.ranks, 49));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const pid_t child = fork();
    if (child == 0) {
      int refused = 0;
      const auto expect_refusal = [&](auto&& call) {
        try {
          call();
        } catch (const sluice::ArgumentError& error) {
          refused += std::strstr(error.what(), "forked copy") != nullptr;
        }
      };
      expect_refusal([&] { comm.dispatch(brought->args); });
      expect_refusal([&] { comm.combine({}); });
      expect_refusal([&] { comm.allocate(1, 64, DataType::bf16); });
      _exit(refused == 3 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    round_trip(comm, job, self.rank, {});
  });
}

// What the child drops may be locked by threads that it does not have.
PROMISE(F4, a_forked_child_can_drop_its_copies_at_any_moment, {{1, 2}, Where::processes}) {
  if (on_cuda()) GTEST_SKIP() << "a forked child cannot use CUDA";
  const Job job(small_recipe(at.ranks, 50));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    sluice::DispatchResult kept = comm.dispatch(brought->args);
    std::atomic<bool> stop{false};
    const std::byte yes{1};
    std::thread busy([&] {  // until rank 0 says so, that all make as many calls
      while (self.group.all_gather({&yes, stop ? 0u : 1u})[0].size() == 1) comm.dispatch(brought->args).ready.wait();
    });
    for (int i = 0; i < 60 && !failed_here(); ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(10);
        comm.used_on(kept.rows, {});
        kept = {};
        _exit(0);
      }
      int status = -1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0) << "child " << i;
    }
    stop = true;
    busy.join();
  });
}

PROMISE(C10, a_communicator_says_what_it_is, {{1, 3}}) {
  Recipe recipe = small_recipe(at.ranks, 32);
  recipe.first = {0};
  for (int r = 0; r < at.ranks; ++r) recipe.first.push_back(recipe.first.back() + r + 1);
  recipe.experts = recipe.first.back();
  recipe.call.topk = 1;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    const sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    sluice::Communicator comm(self.group, options);
    EXPECT_EQ(comm.rank(), self.rank);
    EXPECT_EQ(comm.size(), self.size);
    EXPECT_EQ(comm.nodes(), 1);
    EXPECT_EQ(comm.node_of(self.size - 1), 0);
    EXPECT_EQ(comm.local_rank(), self.rank);
    EXPECT_EQ(comm.engine(), self.engine);
    EXPECT_EQ(comm.local_experts(), self.rank + 1);
    for (int r = 0; r <= self.size; ++r) EXPECT_EQ(comm.first_expert(r), job.problem.first[index(r)]);
    std::int64_t sum = 0;
    for (const sluice::SizeTerm& term : comm.window_size().terms) sum += term.bytes;
    EXPECT_EQ(sum, comm.window_size().window_bytes);
    EXPECT_EQ(sluice::Communicator::size_of(options, self.size).window_bytes,
              comm.window_size().window_bytes);
  });
}

}  // namespace
}  // namespace conformance
