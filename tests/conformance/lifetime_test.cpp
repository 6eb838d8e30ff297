// C7, C8, C10 and what a communicator says of itself: life times, growth, workers, several at once.
#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr Layout layouts[] = {Layout::packed, Layout::grouped, Layout::padded};

Recipe base(const At& at, std::uint64_t seed) {
  Recipe recipe;
  recipe.seed = seed;
  recipe.ranks = at.ranks;
  recipe.experts = 4 * at.ranks;
  recipe.tokens = {12, 5, 17};
  return recipe;
}

PROMISE(C7, arguments_may_be_dropped_right_after_the_call, {{2, 3}}) {
  Recipe recipe = base(at, 7);
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
    // One more operation, after which nothing of the earlier ones may be held.
    {
      const auto brought = bring(job.problem, self.rank);
      comm.dispatch(brought->args).ready.wait();
    }
    EXPECT_TRUE(alive.expired());
    EXPECT_TRUE(inputs.expired());
  });
}

PROMISE(C7, results_routes_and_events_outlive_the_communicator, {{1, 2, 3}}) {
  for (Layout layout : layouts) {
    Recipe recipe = base(at, 8);
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

std::int64_t resident_pages() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident;
}

std::int64_t entries(const char* folder) {
  std::int64_t n = 0;
  DIR* dir = opendir(folder);
  while (dir != nullptr && readdir(dir) != nullptr) ++n;
  if (dir != nullptr) closedir(dir);
  return n;
}

PROMISE(C7, nothing_grows_with_the_number_of_calls, {{2}}) {
  constexpr int rounds = 10000;
  Recipe recipe = base(at, 9);
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
    std::int64_t pages = 0, files = 0, threads = 0;
    const auto count = [&](bool again) {
      self.group.barrier();
      if (self.rank == 0 && again) {
        // A sanitizer keeps freed memory back, and so does the CUDA driver.
        if (std::getenv("SLUICE_REDUCED") == nullptr && !on_cuda()) {
          EXPECT_LE(resident_pages() - pages, 512) << "pages of memory";
        }
        EXPECT_EQ(entries("/proc/self/fd"), files);
        EXPECT_EQ(entries("/proc/self/task"), threads);
      }
      if (self.rank == 0) {
        pages = resident_pages();
        files = entries("/proc/self/fd");
        threads = entries("/proc/self/task");
      }
      self.group.barrier();
    };
    calls(300);
    count(false);
    calls(rounds);
    count(true);
  });
}

PROMISE(C8, any_number_of_workers_gives_the_same_bytes, {{1, 2, 3}}) {
  Recipe recipe = base(at, 10);
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
    Recipe recipe = base(at, 20 + static_cast<std::uint64_t>(layout));
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
  Recipe recipe = base(at, 30);
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
  const Job job(base(at, 31));
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

PROMISE(C10, a_communicator_says_what_it_is, {{1, 3}}) {
  Recipe recipe = base(at, 32);
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

PROMISE(V1, count_says_what_dispatch_would_send, {{1, 2, 5}}) {
  for (bool mask : {false, true}) {
    Recipe recipe = base(at, 33);
    recipe.missing = 0.2;
    recipe.call.mask = mask;
    const Job job(recipe);
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
      const auto brought = bring(job.problem, self.rank);
      const sluice::RoutingCounts counts = comm.count(brought->args);
      const std::int64_t tokens = job.problem.inputs[index(self.rank)].tokens;
      ASSERT_EQ(counts.tokens_per_rank.size(), index(self.size));
      ASSERT_EQ(counts.rank_mask.size(), index(tokens * self.size));
      std::int64_t marked = 0;
      for (std::uint8_t m : counts.rank_mask) marked += m != 0;
      std::int64_t sum = 0;
      for (int r = 0; r < self.size; ++r) {
        EXPECT_EQ(counts.tokens_per_rank[index(r)], job.arrivals[index(r)].per_source[index(self.rank)]);
        sum += counts.tokens_per_rank[index(r)];
      }
      EXPECT_EQ(marked, sum);
      if (mask) {
        EXPECT_TRUE(counts.tokens_per_expert.empty());
        return;
      }
      std::vector<std::int64_t> chosen(index(job.problem.experts), 0);
      for (std::int64_t id : job.problem.inputs[index(self.rank)].ids)
        if (id >= 0) ++chosen[index(id)];
      EXPECT_EQ(counts.tokens_per_expert, chosen);
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      brought->args.expert_ids = {};
      brought->args.route = sent.route;
      EXPECT_EQ(comm.count(brought->args).tokens_per_rank, counts.tokens_per_rank);
    });
  }
}

// Case 25. Rows per expert, added up over ten calls with -1 and padding.
// What count finds, dispatch would: the ids are checked by the same rule.
PROMISE(S4, count_checks_ids_as_dispatch_does, {{1, 2}}) {
  const Job job(base(at, 34));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    std::vector<std::int32_t, CallAllocator<std::int32_t>> ids{0, 1, 0, job.problem.experts};
    sluice::DispatchArgs args;
    args.expert_ids = sluice::ConstTensorView(ids.data(), DataType::int32, 2, 2);
    args.checks = sluice::Checks::on;
    expect_error<sluice::ArgumentError>(
        [&] { comm.count(args); },
        {"count on rank", "expert id " + std::to_string(job.problem.experts) + " in row 1, column 1"});
    args.checks = sluice::Checks::off;
    EXPECT_EQ(comm.count(args).tokens_per_expert[0], 2);
    args.checks = static_cast<sluice::Checks>(9);
    expect_error<sluice::ArgumentError>([&] { comm.count(args); }, {"checks = 9 is outside 0 to 2"});
    round_trip(comm, job, self.rank, {});
  });
}

PROMISE(C4, expert_load_adds_up_over_ten_calls, {{1, 2, 4}}) {
  for (Layout layout : layouts) {
    std::vector<Job> jobs;
    for (int i = 0; i < 10; ++i) {
      Recipe recipe = base(at, 250 + static_cast<std::uint64_t>(i));
      recipe.missing = 0.3;
      recipe.max_tokens = 20;
      recipe.call.layout = layout;
      recipe.call.alignment = layout == Layout::grouped ? 8 : 1;
      recipe.call.counts = i % 2 ? Counts::exact : Counts::bounded;
      jobs.emplace_back(recipe);
    }
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      sluice::Communicator comm(self.group, options_for(jobs[0].problem, self.engine));
      CallVector<std::int32_t> load(index(comm.local_experts()), 0), truth = load;
      for (const Job& job : jobs) {
        const auto brought = bring(job.problem, self.rank);
        brought->args.expert_load = sluice::TensorView(load.data(), DataType::int32, comm.local_experts());
        comm.dispatch(brought->args).ready.wait();
        for (const Input& in : job.problem.inputs)
          for (std::int64_t id : in.ids)
            if (job.problem.owner(id) == self.rank) ++truth[index(id - comm.first_expert(self.rank))];
      }
      EXPECT_EQ(load, truth);
    });
  }
}

}  // namespace
}  // namespace conformance
