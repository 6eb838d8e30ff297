// plan, and publish with it, which needs its totals alone: the last block to have counted writes the records (and, with
// one rank, agrees), so that OPEN goes out before the places are found. That is a second kernel, or, where one block
// counts, the end of the first.
#include <cuda_runtime.h>

#include "core/plan.h"
#include "engine/cuda/agree.cuh"
#include "engine/cuda/block.cuh"
#include "engine/cuda/count.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/publish.cuh"
#include "engine/cuda/start.cuh"
#include "engine/cuda/launch_plan.h"

namespace sluice::cuda {

using namespace core;

namespace {

// The router's ids as the caller gives them. Counts what is legal; notes the lowest slot that is not.
template <class Id>
struct CallerIds {
  const PlanArgs& args;

  __device__ std::int64_t topk() const { return args.route.topk; }
  __device__ std::int64_t raw(std::int64_t t, std::int32_t k) const {
    return static_cast<std::int64_t>(static_cast<const Id*>(args.ids)[t * args.route.topk + k]);
  }
  __device__ std::int32_t legal(std::int64_t t, std::int32_t k) const {
    return expert_of_id(raw(t, k), args.topology->experts);
  }
  __device__ bool stands_before(std::int64_t t, std::int32_t k, std::int64_t id) const {
    for (std::int32_t earlier = 0; earlier < k; ++earlier) {
      if (raw(t, earlier) == id) return true;
    }
    return false;
  }
  // The expert, once per token; -1 where nothing is counted.
  __device__ std::int32_t counted(std::int64_t t, std::int32_t k) const {
    const std::int32_t id = legal(t, k);
    return id >= 0 && stands_before(t, k, id) ? -1 : id;
  }
  __device__ IdProblem problem(std::int64_t t, std::int32_t k) const {
    const std::int64_t id = raw(t, k);
    if (id == -1) return IdProblem::none;
    if (legal(t, k) < 0) return IdProblem::out_of_range;
    return stands_before(t, k, id) ? IdProblem::twice : IdProblem::none;
  }
  // Bits: the ranks first to first + 31 that own one of the token's experts.
  __device__ unsigned ranks_of(std::int64_t t, int first) const {
    unsigned ranks = 0;
    for (std::int32_t k = 0; k < args.route.topk; ++k) {
      const std::int32_t id = legal(t, k);
      const int r = id < 0 ? -1 : args.topology->owner_of(id) - first;
      if (r >= 0 && r < 32) ranks |= 1u << r;
    }
    return ranks;
  }
};

struct CallerMask {
  const PlanArgs& args;

  __device__ std::int64_t topk() const { return 0; }
  __device__ std::int32_t legal(std::int64_t, std::int32_t) const { return -1; }
  __device__ std::int32_t counted(std::int64_t, std::int32_t) const { return -1; }
  __device__ unsigned ranks_of(std::int64_t t, int first) const {
    unsigned ranks = 0;
    const std::uint8_t* const goes = args.rank_mask + t * args.route.ranks + first;
    for (int r = 0; r < min(32, args.route.ranks - first); ++r) ranks |= (goes[r] != 0 ? 1u : 0u) << r;
    return ranks;
  }
};

// Of a slot that is not counted.
__device__ void note_fault(const PlanArgs&, const CallerMask&, std::int64_t, std::int32_t, DeviceChannel&) {}
template <class Id>
__device__ void note_fault(const PlanArgs& args, const CallerIds<Id>& ids, std::int64_t t, std::int32_t k, DeviceChannel& channel) {
  if (!args.checks || ids.raw(t, k) == -1) return;
  atomicMin(reinterpret_cast<unsigned long long*>(&channel.fault_at), static_cast<unsigned long long>(t * args.route.topk + k));
}

template <class Choices>
__device__ void tell_fault(const PlanArgs&, const Choices&, DeviceChannel&) {}
template <class Id>
__device__ void tell_fault(const PlanArgs& args, const CallerIds<Id>& ids, DeviceChannel& channel) {
  const std::uint64_t slot = load_relaxed(&channel.fault_at);
  if (slot == no_fault) return;
  const auto t = static_cast<std::int64_t>(slot) / args.route.topk;
  const auto k = static_cast<std::int32_t>(static_cast<std::int64_t>(slot) % args.route.topk);
  args.report->fault = {ids.problem(t, k), k, t, ids.raw(t, k), args.topology->experts};
  channel.fault_at = no_fault;
}

// The plan's parts: by all blocks, by the last block to get there, by all blocks again.
template <class Choices>
struct Plan {
  const PlanArgs& args;
  const CountScratch& scratch;
  DeviceChannel& channel;

  __device__ std::int64_t columns() const { return args.route.ranks + args.topology->experts; }

  __device__ void count() const {
    const RouteTables& route = args.route;
    if (warp_of_grid() == 0 && lane_of_thread() == 0) *route.outcome = Outcome::pending;
    const Choices choices{args};
    count_choices(choices, scratch, route.tokens, route.ranks, columns(),
                  [&](std::int64_t t, std::int32_t k) { note_fault(args, choices, t, k, channel); });
  }

  __device__ void add_up() const {
    scan_blocks(scratch, columns(), [&](std::int64_t c, std::int32_t total) { args.route.sent[c] = total; });
    if (threadIdx.x == 0) tell_fault(args, Choices{args}, channel);
  }

  __device__ void place() const {
    const RouteTables& route = args.route;
    const Choices choices{args};
    place_choices(
        choices, scratch, route.tokens, route.ranks, columns(),
        [&](std::int64_t t, std::int32_t k, std::int32_t position) {
          const std::int64_t slot = t * route.topk + k;
          if constexpr (!std::is_same_v<Choices, CallerMask>) route.expert_of[slot] = choices.legal(t, k);
          route.slot_index[slot] = position;
        },
        [&](std::int64_t t, int r, std::int32_t position) { route.send_index[t * route.ranks + r] = position; });
  }
};

template <class Choices>
__global__ void __launch_bounds__(count_threads, 1) place_kernel(const __grid_constant__ PlanArgs args, const __grid_constant__ StepContext step, CountScratch scratch) {
  wait_for_kernel_before();
  Plan<Choices>{args, scratch, *step.channel}.place();
  end_step(step);
}

template <class Choices>
__global__ void __launch_bounds__(count_threads, 1)
opening_kernel(const __grid_constant__ PlanArgs args, const __grid_constant__ PublishArgs published,
               const __grid_constant__ AgreeArgs agreed, const __grid_constant__ StepContext step, CountScratch scratch,
               bool agrees) {
  const bool well = may_work(step);
  const Plan<Choices> plan{args, scratch, *step.channel};
  plan.count();
  end_step(step, [&] {
    plan.add_up();
    if (threadIdx.x == 0) args.report->stamps[static_cast<int>(Stamp::plan_end)] = now_ns();
    __syncthreads();
    publish(published, step, well);
    __syncthreads();
    if (well && agrees) agree_together(agreed, *step.channel);
    if (gridDim.x > 1) return;
    __syncthreads();
    plan.place();
  });
}

CountShape shape_of(const PlanArgs& args, const Launch& how) {
  return count_shape(how, args.route.tokens, args.route.ranks + how.topology->experts);
}

// Calls with.template operator()<Choices>().
template <class With>
cudaError_t with_choices(const PlanArgs& args, With&& with) {
  if (args.rank_mask) return with.template operator()<CallerMask>();
  if (args.ids_are_64_bit) return with.template operator()<CallerIds<std::int64_t>>();
  return with.template operator()<CallerIds<std::int32_t>>();
}

}  // namespace

std::int64_t scratch_elements(int ranks, int experts) {
  constexpr std::int64_t most = 2 << 20;  // 8 MB
  const std::int64_t columns = std::max(1, ranks + experts);  // asked before options are checked
  // One row per unit and one per block; at least one of each.
  return columns * std::max<std::int64_t>(2, std::min<std::int64_t>(512 + 132, most / columns));
}

CountShape count_shape(const Launch& how, std::int64_t tokens, std::int64_t columns) {
  const std::int64_t rows = how.scratch.elements / columns;
  // Units of a few tokens each. One block saves a kernel, as long as its units are not long.
  constexpr std::int64_t few = 4, most_of_one_block = 512;
  const std::int64_t useful = std::max<std::int64_t>(1, (tokens + few - 1) / few);
  const auto per_block = static_cast<int>(std::clamp<std::int64_t>(rows / 2, 1, std::min<std::int64_t>(16, useful)));
  const std::int64_t wanted = tokens <= most_of_one_block ? 1 : (useful + per_block - 1) / per_block;
  const std::int64_t blocks = std::min<std::int64_t>({how.num_sms, wanted, rows / (per_block + 1)});
  CountShape shape;
  shape.blocks = static_cast<unsigned>(std::max<std::int64_t>(1, blocks));
  shape.scratch.units_per_block = per_block;
  shape.scratch.unit_counts = how.scratch.counts;
  shape.scratch.block_counts = how.scratch.counts + static_cast<std::int64_t>(shape.blocks) * per_block * columns;
  const std::int64_t bytes = 4 * per_block * columns;
  shape.scratch.shared_bytes = bytes <= count_shared_bytes ? static_cast<std::int32_t>(bytes) : 0;
  return shape;
}

cudaError_t prepare_plan() {
  using Ids = CallerIds<std::int32_t>;
  using WideIds = CallerIds<std::int64_t>;
  return prepare_all(count_shared_bytes, opening_kernel<Ids>, place_kernel<Ids>, opening_kernel<WideIds>,
                     place_kernel<WideIds>, opening_kernel<CallerMask>, place_kernel<CallerMask>);
}

cudaError_t launch_with_plan(const Opening& opening, const StepContext& step, const Launch& how) {
  const PlanArgs& plan = *opening.plan;
  const AgreeArgs agree = opening.agree ? *opening.agree : AgreeArgs{};
  const auto [blocks, scratch] = shape_of(plan, how);
  const Grid grid{blocks, count_threads, scratch.shared_bytes};
  return with_choices(plan, [&]<class Choices>() {
    const cudaError_t error = start(opening_kernel<Choices>, grid, how, plan, *opening.publish, agree, step, scratch, opening.agree != nullptr);
    return error != cudaSuccess || blocks == 1 ? error : start(place_kernel<Choices>, grid, how.next(), plan, step.inner(), scratch);
  });
}

}  // namespace sluice::cuda
