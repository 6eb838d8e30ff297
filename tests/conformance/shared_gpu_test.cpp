// C8 and C9 where kernels of others hold the GPU's SMs.
#if defined(SLUICE_CUDA)

#include <atomic>
#include <thread>

#include "drive.h"
#include "gpu.h"
#include "registry.h"

namespace conformance {
namespace {

constexpr std::uint64_t held_at_most_ns = 20'000'000'000;

// Writes 1 to mine[block], and stays until all of theirs[0 .. count) are 1, or the time is over.
const void* holding_kernel() {
  static const void* const kernel = kernel_of(R"(
.version 8.0
.target sm_90
.address_size 64
.visible .entry hold(.param .u64 mine, .param .u64 theirs, .param .u32 count, .param .u64 limit) {
  .reg .u64 %at, %there, %begin, %now, %most;
  .reg .u32 %block, %value, %left, %one;
  .reg .pred %p;
  ld.param.u64 %at, [mine];
  ld.param.u64 %there, [theirs];
  ld.param.u32 %left, [count];
  ld.param.u64 %most, [limit];
  mov.u64 %begin, %globaltimer;
  mov.u32 %block, %ctaid.x;
  mov.u32 %one, 1;
  mad.wide.u32 %at, %block, 4, %at;
  st.relaxed.sys.u32 [%at], %one;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %begin;
  setp.gt.u64 %p, %now, %most;
  @%p bra done;
  ld.relaxed.sys.u32 %value, [%there];
  setp.eq.u32 %p, %value, 0;
  @%p bra again;
  add.u64 %there, %there, 4;
  sub.u32 %left, %left, 1;
  setp.ne.u32 %p, %left, 0;
  @%p bra again;
done:
  ret;
}
)", "hold");
  return kernel;
}

int number_of_sms() {
  int device = 0, sms = 0;
  expect(cudaGetDevice(&device), "cudaGetDevice");
  expect(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return sms;
}

// Words that the host and the GPU see, zero at first.
class Words {
 public:
  explicit Words(int count) : count_(count) {
    expect(cudaHostAlloc(reinterpret_cast<void**>(&words_), sizeof(std::uint32_t) * static_cast<std::size_t>(count),
                         cudaHostAllocPortable | cudaHostAllocMapped),
           "cudaHostAlloc");
    set(0);
  }
  ~Words() { cudaFreeHost(words_); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  std::uint32_t* data() const { return words_; }
  int count() const { return count_; }
  void set(std::uint32_t value) {
    for (int i = 0; i < count_; ++i) std::atomic_ref(words_[i]).store(value);
  }
  void wait_for_all() const {
    for (int i = 0; i < count_; ++i) {
      while (std::atomic_ref(words_[i]).load() == 0) std::this_thread::yield();
    }
  }

 private:
  std::uint32_t* words_ = nullptr;
  int count_;
};

// A block on each of so many SMs, as mine.count() says.
void hold(const CallersStream& stream, const Words& mine, const Words& theirs) {
  constexpr int whole_sm = 200 * 1024;
  std::uint32_t *at = mine.data(), *there = theirs.data();
  int count = theirs.count();
  std::uint64_t limit = held_at_most_ns;
  void* arguments[] = {&at, &there, &count, &limit};
  expect(cudaFuncSetAttribute(holding_kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, whole_sm), "cudaFuncSetAttribute");
  expect(cudaLaunchKernel(holding_kernel(), dim3(static_cast<unsigned>(mine.count())), dim3(32), arguments, whole_sm, stream.get()),
         "cudaLaunchKernel");
}

Recipe few_tokens(const At& at, std::uint64_t seed, Layout layout) {
  Recipe recipe;
  recipe.seed = seed;
  recipe.ranks = at.ranks;
  recipe.experts = 4 * at.ranks;
  recipe.tokens = {300, 170};
  recipe.call.layout = layout;
  recipe.call.counts = Counts::bounded;
  return recipe;
}

PROMISE(C8, two_free_sms_are_enough, {{1, 2}, Where::threads}) {
  if (at.place.engine == "cpu") GTEST_SKIP() << "the CPU engine has no SMs: needs the CUDA engine";
  const Job packed(few_tokens(at, 80, Layout::packed)), grouped(few_tokens(at, 81, Layout::grouped));
  holding_kernel();
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(packed.problem, self.engine));
    round_trip(comm, packed, self.rank);
    Words held(number_of_sms() - 2), free(1);
    const CallersStream others;
    if (self.rank == 0) {
      hold(others, held, free);
      held.wait_for_all();
    }
    self.group.barrier();
    for (const int sms : {0, 1, 3, 8, 17}) {
      Round round;
      round.manner.num_sms = std::min(sms, comm.num_sms());
      round_trip(comm, packed, self.rank, round);
      round_trip(comm, grouped, self.rank, round);
    }
    EXPECT_EQ(others.busy(), self.rank == 0) << "the SMs were not held until now";
    self.group.barrier();
    free.set(1);
    others.wait();
  });
}

// A kernel that stays until the peer's runs stands for the collective of another library.
PROMISE(C9, composes_with_other_collectives, {{2}, Where::threads}) {
  if (at.place.engine == "cpu") GTEST_SKIP() << "the CPU engine has no SMs: needs the CUDA engine";
  const Job job(few_tokens(at, 82, Layout::packed));
  const int sms = number_of_sms() / 4;
  holding_kernel();  // loading it would wait for a lane that waits
  std::vector<std::unique_ptr<Words>> words;
  for (int r = 0; r < at.ranks; ++r) words.push_back(std::make_unique<Words>(sms));
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
    round_trip(comm, job, self.rank);
    const CallersStream others;
    const auto brought = bring(job.problem, self.rank);
    const Words &mine = *words[static_cast<std::size_t>(self.rank)], &theirs = *words[static_cast<std::size_t>(1 - self.rank)];
    Bytes sums;
    for (int round = 0; round < 20; ++round) {
      words[static_cast<std::size_t>(self.rank)]->set(0);
      self.group.barrier();
      const bool first = round % 2 == self.rank;
      if (first) hold(others, mine, theirs);
      const sluice::DispatchResult sent = comm.dispatch(brought->args);
      sluice::CombineArgs args;
      args.rows = sent.rows;
      args.route = sent.route;
      const sluice::CombineResult home = comm.combine(args);
      if (!first) hold(others, mine, theirs);
      home.ready.wait();
      others.wait();
      if (round == 0) sums = tight(home.rows);
      ASSERT_EQ(tight(home.rows), sums) << "round " << round;
      self.group.barrier();
    }
  });
}

}  // namespace
}  // namespace conformance

#endif
