// F3: ranks that disagree, at creation and in a call.
#include "drive.h"
#include "registry.h"

namespace conformance {
namespace {

sluice::CommunicatorOptions small(const std::string& engine, int ranks) {
  sluice::CommunicatorOptions options;
  options.engine = engine;
  options.max_tokens = 128;
  options.experts = 12 * ranks;
  options.hidden = 64;
  options.topk = 4;
  options.deadline_ms = 20'000;
  return options;
}

struct Change {
  const char* what;
  void (*apply)(sluice::CommunicatorOptions&, int ranks);
  std::vector<std::string> said;  // what the message must name: both values
};

// Case 5.
PROMISE(F3, options_that_differ_between_ranks_are_an_error_with_both_values, {{2, 3}}) {
  const Change changes[] = {
      {"max_tokens", [](sluice::CommunicatorOptions& o, int) { o.max_tokens = 256; }, {"128", "256"}},
      {"experts", [](sluice::CommunicatorOptions& o, int r) { o.experts = 24 * r; }, {"experts"}},
      {"hidden", [](sluice::CommunicatorOptions& o, int) { o.hidden = 72; }, {"64", "72"}},
      {"topk", [](sluice::CommunicatorOptions& o, int) { o.topk = 5; }, {"4", "5"}},
      {"dtype", [](sluice::CommunicatorOptions& o, int) { o.dtype = DataType::fp16; }, {"bf16", "fp16"}},
      {"layout",
       [](sluice::CommunicatorOptions& o, int) { o.layout = Layout::grouped; },
       {"packed", "grouped"}},
      {"alignment", [](sluice::CommunicatorOptions& o, int) { o.alignment = 48; }, {"1", "48"}},
      {"capacity", [](sluice::CommunicatorOptions& o, int) { o.capacity = 77; }, {"0", "77"}},
      {"channels", [](sluice::CommunicatorOptions& o, int) { o.channels = 3; }, {"2", "3"}},
      {"arena_bytes", [](sluice::CommunicatorOptions& o, int) { o.arena_bytes = 4 << 20; }, {"4194304"}},
      {"first_expert",
       [](sluice::CommunicatorOptions& o, int r) {
         for (int i = 0; i <= r; ++i) o.first_expert.push_back(i == 1 ? 11 : 12 * i);
       },
       {"11"}}};
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    for (const Change& change : changes) {
      SCOPED_TRACE(change.what);
      sluice::CommunicatorOptions options = small(self.engine, self.size);
      if (self.rank == self.size - 1) change.apply(options, self.size);
      const double start = now_ms();
      expect_error<sluice::ArgumentError>([&] { sluice::Communicator(self.group, options); }, change.said);
      EXPECT_LT(now_ms() - start, 5000);
      if (failed_here()) return;
    }
    sluice::CommunicatorOptions options = small(self.engine, self.size);
    options.workers = self.rank + 1;  // these may differ
    options.log = self.rank == 0 ? [](sluice::LogLevel, const std::string&) {} : options.log;
    EXPECT_NO_THROW(sluice::Communicator(self.group, options));
  });
}

struct Difference {
  const char* what;
  void (*apply)(Recipe&);
  std::vector<std::string> said;
};

void call_difference(const At& at, const Difference& difference) {
  Recipe recipe;
  recipe.seed = 33;
  recipe.ranks = at.ranks;
  recipe.experts = 12 * at.ranks;
  recipe.tokens = {6, 3};
  recipe.call.hidden = 128;
  const Job common(recipe);
  difference.apply(recipe);
  const Job other(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    SCOPED_TRACE(difference.what);
    sluice::CommunicatorOptions options = options_for(common.problem, self.engine);
    options.arena_bytes = 16 << 20;
    sluice::Communicator comm(self.group, options);
    for (int turn = 0; turn < 2 && !failed_here(); ++turn) {
      const Job& mine = self.rank == turn ? other : common;
      const auto brought = bring(mine.problem, self.rank);
      const double start = now_ms();
      expect_error<sluice::PeerError>([&] { comm.dispatch(brought->args).ready.wait(); }, difference.said);
      EXPECT_LT(now_ms() - start, 5000) << "somebody waited for a deadline";
      round_trip(comm, common, self.rank,
                 {.manner = {},
                  .combine = combine_call(common.problem),
                  .memory = Memory::own,
                  .combine_too = true});
    }
  });
}

PROMISE(F3, calls_that_differ_are_told_to_every_rank_with_both_values, {{2, 3}}) {
  const Difference differences[] = {
      {"topk", [](Recipe& r) { r.call.topk = 5; }, {"4", "5"}},
      {"hidden", [](Recipe& r) { r.call.hidden = 144; }, {}},
      {"layout", [](Recipe& r) { r.call.layout = Layout::padded; }, {"packed", "padded"}},
      {"dtype", [](Recipe& r) { r.call.dtype = DataType::fp16; }, {"bf16", "fp16"}},
      {"scales", [](Recipe& r) { r.call.scales = 2; }, {"0", "8"}},
      {"weights", [](Recipe& r) { r.call.weights = false; }, {"weights"}},
      {"counts", [](Recipe& r) { r.call.counts = Counts::bounded; }, {"exact", "bounded"}},
      {"quantise", [](Recipe& r) { r.call.quantise = Quantise::e4m3; }, {"0", "4"}},
      {"on_overflow", [](Recipe& r) { r.call.on_overflow = OnOverflow::drop; }, {"drop"}},
      {"mask", [](Recipe& r) { r.call.mask = true; }, {}}};
  for (const Difference& difference : differences) call_difference(at, difference);
}

PROMISE(F3, alignment_and_scale_layout_must_agree, {{2}}) {
  Recipe recipe;
  recipe.ranks = at.ranks;
  recipe.experts = 8;
  recipe.tokens = {6, 3};
  recipe.call.layout = Layout::grouped;
  recipe.call.scales = 4;
  const Job common(recipe);
  recipe.call.alignment = 16;
  const Job aligned(recipe);
  recipe.call.alignment = 1;
  recipe.call.scale_layout = ScaleLayout::column;
  const Job column(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(common.problem, self.engine);
    options.arena_bytes = 16 << 20;
    sluice::Communicator comm(self.group, options);
    for (const Job* other : {&aligned, &column}) {
      const auto brought = bring((self.rank == 1 ? *other : common).problem, self.rank);
      expect_error<sluice::PeerError>(
          [&] { comm.dispatch(brought->args).ready.wait(); },
          other == &aligned ? std::vector<std::string>{"1", "16"} : std::vector<std::string>{"column"});
    }
    round_trip(comm, common, self.rank, {});
  });
}

PROMISE(F3, one_dispatches_while_another_combines, {{2, 3}}) {
  Recipe recipe;
  recipe.ranks = at.ranks;
  recipe.experts = 4 * at.ranks;
  recipe.tokens = {6, 3};
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    const Half half = first_half(comm, job, self.rank);
    expect_error<sluice::PeerError>(
        [&] {
          if (self.rank == 0)
            comm.dispatch(half.brought->args).ready.wait();
          else
            comm.combine(half.returned->args).ready.wait();
        },
        {"dispatch", "combine"});
    check_combine(job, self.rank, half.call, comm.combine(half.returned->args));
    round_trip(comm, job, self.rank);  // its route has the same number everywhere
  });
}

PROMISE(F3, combines_that_differ_are_told_to_every_rank, {{2, 3}}) {
  Recipe recipe;
  recipe.ranks = at.ranks;
  recipe.experts = 4 * at.ranks;
  recipe.tokens = {6, 3};
  recipe.call.layout = Layout::grouped;
  const Job job(recipe);
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::CommunicatorOptions options = options_for(job.problem, self.engine);
    options.arena_bytes = 16 << 20;
    sluice::Communicator comm(self.group, options);
    const auto brought = bring(job.problem, self.rank);
    const sluice::DispatchResult sent = comm.dispatch(brought->args);
    check_dispatch(job, self.rank, sent, *brought);
    for (int difference = 0; difference < 4; ++difference) {
      SCOPED_TRACE(difference);
      const CombineCall call = combine_call(job.problem);
      CombineCall mine = call;
      if (self.rank == difference % self.size) {
        if (difference == 0) mine.type = DataType::fp16;
        if (difference == 1) mine.hidden += 8;
        if (difference == 2) mine.values = true;
        if (difference == 3) mine.single_rounding = true;
      }
      const auto wrong = give_back(comm, job, self.rank, sent, mine);
      expect_error<sluice::PeerError>([&] { comm.combine(wrong->args).ready.wait(); });
      const auto returned = give_back(comm, job, self.rank, sent, call);
      check_combine(job, self.rank, call, comm.combine(returned->args));
      if (failed_here()) return;
    }
  });
}

}  // namespace
}  // namespace conformance
