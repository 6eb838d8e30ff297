// S4, U2 and F8: the call behind a bad one, an error that meets a callback that throws, and data of an
// operation that failed.
#include <optional>
#include <stdexcept>

#include "drive.h"
#include "failing_allocation.h"
#include "registry.h"

namespace conformance {
namespace {

Recipe base(const At& at, std::uint64_t seed) {
  Recipe recipe = small_recipe(at.ranks, seed);
  recipe.call.counts = Counts::bounded;
  return recipe;
}

// Rank 0 chooses an expert that is none.
Job bad_job(const Recipe& recipe, std::size_t place, std::int64_t id) {
  Job job(recipe);
  job.problem.inputs[0].ids[place] = id;
  return job;
}

// bounded, checked: a bad id shows at `ready`, and one that nobody waited for at the next host call.
PROMISE(S4, a_bad_id_of_a_bounded_call_shows_at_ready_and_at_the_next_call, {{2}}) {
  Recipe recipe = small_recipe(at.ranks, 10);
  recipe.call.counts = Counts::bounded;
  recipe.call.checks = Checks::on;
  const Job legal(recipe);
  Job job(recipe);
  job.problem.inputs[0].ids[6] = 999;
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::Event ready = comm.dispatch(brought->args).ready;
    self.group.barrier();
    sleep_ms(100);
    const auto next = bring(legal.problem, self.rank);
    const auto call = [&] { comm.dispatch(next->args).ready.wait(); };
    if (self.rank == 0) {
      expect_error<sluice::ArgumentError>(call, {"999"});
      expect_error<sluice::ArgumentError>([&] { ready.wait(); }, {"999", "row 1", "column 2"});
    } else {
      expect_error<sluice::PeerError>([&] { ready.wait(); }, {"rank 0 refused"});
      try {
        call();
      } catch (const sluice::PeerError&) {
      }
    }
    round_trip(comm, legal, self.rank, {});
  });
}

// Whoever waits is told of the ids of its own call, whatever the other call was told.
PROMISE(S4, each_of_two_bad_bounded_calls_tells_at_its_own_event, {{2, 3}}) {
  Recipe recipe = base(at, 301);
  recipe.call.checks = Checks::on;
  const Job legal(recipe), first = bad_job(recipe, 6, 777), second = bad_job(recipe, 1, 888);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(legal.problem, self.engine));
    const auto tells = [&](const Job& job, const std::string& id) {
      const auto brought = bring(job.problem, self.rank);
      const sluice::Event ready = comm.dispatch(brought->args).ready;
      for (int again = 0; again < 2; ++again) {
        if (self.rank == 0)
          expect_error<sluice::ArgumentError>([&] { ready.wait(); }, {id});
        else
          expect_error<sluice::PeerError>([&] { ready.wait(); }, {"rank 0 refused", id});
      }
    };
    tells(first, "777");
    tells(second, "888");
    round_trip(comm, legal, self.rank, {});
  });
}

// Nobody waits for either: one call after the other tells of them, in their order, and is refused.
PROMISE(S4, a_second_bad_bounded_call_after_a_first_is_told_at_a_later_call, {{2, 3}}) {
  Recipe recipe = base(at, 302);
  recipe.call.checks = Checks::on;
  const Job legal(recipe), first = bad_job(recipe, 6, 777), second = bad_job(recipe, 1, 888);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(legal.problem, self.engine));
    const auto one = bring(first.problem, self.rank), two = bring(second.problem, self.rank);
    // The others come late, so that both are queued before the ids of the first are known as bad.
    if (self.rank != 0) sleep_ms(100);
    comm.dispatch(one->args);
    {
      const sluice::Event last = comm.dispatch(two->args).ready;
      self.group.barrier();
      if (self.rank != 0) expect_error<sluice::PeerError>([&] { last.wait(); }, {"rank 0 refused", "888"});
      sleep_ms(100);
    }
    for (const char* id : {"777", "888"}) {
      const auto brought = bring(legal.problem, self.rank);
      if (self.rank == 0)
        expect_error<sluice::ArgumentError>([&] { comm.dispatch(brought->args); }, {id});
      else
        expect_error<sluice::PeerError>([&] { comm.dispatch(brought->args).ready.wait(); },
                                        {"rank 0 refused", id});
    }
    round_trip(comm, legal, self.rank, {});
  });
}

// The callback is the caller's: what it throws comes out of the call, and nothing else changes.
PROMISE(U2, what_a_log_callback_throws_leaves_the_communicator_usable, {{1, 2, 3}}) {
  const Job job(base(at, 303));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    bool throws = false;
    int told = 0;
    options.log_level = sluice::LogLevel::info;
    options.log = [&](sluice::LogLevel, const std::string&) {
      ++told;
      if (throws) throw std::runtime_error("from the callback");
    };
    sluice::Communicator comm(self.group, options);
    for (int round = 0; round < 3; ++round) {
      throws = true;
      told = 0;
      const auto brought = bring(job.problem, self.rank);
      if (self.rank == 0) {
        brought->args.alignment = 0;
        expect_error<std::runtime_error>([&] { comm.dispatch(brought->args); });
        EXPECT_EQ(told, 1);
      } else {
        expect_error<sluice::PeerError>([&] { comm.dispatch(brought->args).ready.wait(); },
                                        {"rank 0 refused", "alignment"});
      }
      throws = false;
      round_trip(comm, job, self.rank, {});
    }
  });
}

// At creation, on one rank: it has no communicator, and its peers find that out without a hang.
PROMISE(U2, what_a_log_callback_throws_at_creation_refuses_it_on_all_ranks, {{2, 3}}) {
  const Job job(base(at, 304));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.log_level = sluice::LogLevel::info;
    if (self.rank == 0)
      options.log = [](sluice::LogLevel, const std::string&) {
        throw std::runtime_error("from the callback");
      };
    if (self.rank == 0) {
      expect_error<std::runtime_error>([&] { sluice::Communicator comm(self.group, options); }, {"callback"});
    } else {
      expect_error<sluice::PeerError>([&] { sluice::Communicator comm(self.group, options); }, {"rank 0 refused", "from the callback"});
    }
    run_job(self, job);
  });
}

// Each allocation that rank 0's thread makes on the way, one after the other: both ranks have a communicator that works,
// or both have an error, soon.
PROMISE(U2, no_memory_on_one_rank_while_a_communicator_is_made_is_an_error_on_all, {{2}}) {
  if (on_cuda()) GTEST_SKIP() << "hundreds of communicators; what it tests is the same on both engines";
  const Job job(base(at, 306));
  for (int n = 0; n < 180; ++n) {  // there are some 150
    run_ranks(at.place, at.ranks, [&](Rank& self) {
      std::optional<sluice::Communicator> comm;
      const double began = now_ms();
      if (self.rank == 0) allocations_left = n;
      std::string error;
      try {
        comm.emplace(self.group, options_for(job.problem, self.engine));
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
      allocations_left = -1;
      EXPECT_LT(now_ms() - began, 5000) << "allocation " << n;
      const std::byte mine{comm.has_value()};
      bool made[2] = {comm.has_value(), comm.has_value()};
      try {
        const auto both = self.group.all_gather({&mine, 1});
        for (int r = 0; r < 2; ++r) made[r] = both[static_cast<std::size_t>(r)][0] == std::byte{1};
      } catch (const sluice::PeerError&) {  // the group went too
        EXPECT_FALSE(comm) << "allocation " << n;
      }
      EXPECT_EQ(made[0], made[1]) << "allocation " << n << ": " << error;
      if (comm && made[0] && made[1]) round_trip(*comm, job, self.rank);
    });
    if (testing::Test::HasFailure()) break;
  }
}

// A dispatch on channel 0 fails, since rank 1 does not come. All meet on channel 1, which is well; but there
// the others build on what that dispatch should have written.
void build_on_lost(const At& at, void (*build)(sluice::Communicator&, const sluice::DispatchResult& good,
                                               const sluice::DispatchResult& lost)) {
  const Job job(base(at, 305));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchResult good = comm.dispatch(brought->args);
    check_dispatch(job, self.rank, good, *brought);
    comm.set_deadline_ms(200);
    sluice::DispatchResult lost = good;  // rank 1 has lost nothing
    if (self.rank != 1) {
      lost = comm.dispatch(brought->args);
      expect_error<sluice::PeerError>([&] { lost.ready.wait(); });
    }
    self.group.barrier();
    comm.set_deadline_ms(20'000);
    const double start = now_ms();
    expect_error<sluice::PeerError>([&] { build(comm, good, lost); }, {"data or memory it needs had failed"});
    EXPECT_LT(now_ms() - start, 5000.0 * slower());
    self.group.barrier();
  });
}

PROMISE(F8, rows_of_a_failed_dispatch_are_not_combined_on_another_channel, {{2, 3}}) {
  build_on_lost(at, [](auto& comm, const auto& good, const auto& lost) {
    sluice::CombineArgs back;
    back.rows = lost.rows;
    back.route = good.route;
    back.after = lost.ready;
    back.channel = 1;
    comm.combine(back).ready.wait();
  });
}

PROMISE(F8, the_route_of_a_failed_dispatch_does_not_serve_another_channel, {{2, 3}}) {
  build_on_lost(at, [](auto& comm, const auto& good, const auto& lost) {
    sluice::CombineArgs back;
    back.rows = good.rows;
    back.route = lost.route;
    back.channel = 1;
    comm.combine(back).ready.wait();
  });
}

PROMISE(F8, rows_of_a_failed_dispatch_are_not_sent_on_another_channel, {{2, 3}}) {
  build_on_lost(at, [](auto& comm, const auto& good, const auto& lost) {
    sluice::DispatchArgs args;
    args.rows =
        sluice::ConstTensorView(lost.rows.data, lost.rows.dtype, good.route.tokens(), lost.rows.shape[1]);
    args.route = good.route;
    args.counts = Counts::bounded;
    args.after = lost.ready;
    args.channel = 1;
    comm.dispatch(args).ready.wait();
  });
}

}  // namespace
}  // namespace conformance
