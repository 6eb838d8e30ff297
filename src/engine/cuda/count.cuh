// Positions without atomics: every warp ("unit") owns a contiguous range of tokens, counts its choices per
// column, and after a scan over the units gives each choice its place in token order. Columns are ranks, then
// experts, as in RouteTables::sent. Two kernels: the tail of the first scans over blocks.
#pragma once

#include "engine/cuda/step.cuh"

namespace sluice::cuda {

inline constexpr int count_threads = 512;
inline constexpr unsigned whole_warp = 0xffffffffu;

inline constexpr std::int64_t count_shared_bytes = 64 * 1024;  // at most, of a block

// Memory of a count, of this channel.
struct CountScratch {
  std::int32_t* unit_counts = nullptr;   // [units][columns]
  std::int32_t* block_counts = nullptr;  // [blocks][columns]
  std::int32_t units_per_block = 1;      // warps that work
  std::int32_t shared_bytes = 0;         // a block counts there, if its [units_per_block][columns] fit
};

struct Unit {
  int lane = 0;
  bool works = false;
  std::int64_t begin = 0, end = 0;  // tokens
  std::int32_t* kept = nullptr;     // [columns], from one kernel to the next
  std::int32_t* counts = nullptr;   // [columns], while a kernel runs
};

__device__ inline Unit unit_of(const CountScratch& scratch, std::int64_t tokens, std::int64_t columns) {
  Unit unit;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  unit.lane = static_cast<int>(threadIdx.x) % 32;
  unit.works = warp < scratch.units_per_block;
  const std::int64_t units = static_cast<std::int64_t>(gridDim.x) * scratch.units_per_block;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * scratch.units_per_block + warp;
  const std::int64_t each = (tokens + units - 1) / units;
  unit.begin = unit.works ? min(tokens, index * each) : 0;
  unit.end = unit.works ? min(tokens, unit.begin + each) : 0;
  extern __shared__ std::int32_t shared_counts[];
  unit.kept = scratch.unit_counts + index * columns;
  unit.counts = scratch.shared_bytes > 0 ? shared_counts + warp * columns : unit.kept;
  return unit;
}

__device__ inline int before_me(unsigned lanes) {
  unsigned lower;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lower));
  return __popc(lanes & lower);
}

// The same for tokens with more slots than a warp has lanes.
template <class Choices, class Use>
__device__ void for_each_slot_of_many(const Choices& choices, const Unit& unit, Use&& use) {
  const std::int64_t topk = choices.topk();
  const std::int64_t end = unit.end * topk;
  for (std::int64_t base = unit.begin * topk; base < end; base += 32) {
    const std::int64_t slot = base + unit.lane;
    const std::int64_t t = slot / topk;
    const auto k = static_cast<std::int32_t>(slot - t * topk);
    const std::int32_t expert = slot < end ? choices.counted(t, k) : -1;
    const unsigned same = __match_any_sync(whole_warp, expert);
    use(slot < end, t, k, expert, same);
    __syncwarp();
  }
}

// Calls use(inside, t, k, expert or -1, lanes of the warp with the same expert) for up to 32 slots at a time, in
// slot order. -1 too where the token names the expert again.
template <class Choices, class Use>
__device__ void for_each_slot(const Choices& choices, const Unit& unit, Use&& use) {
  const auto topk = static_cast<std::int32_t>(choices.topk());
  if (topk > 32) return for_each_slot_of_many(choices, unit, use);
  if (topk == 0) return;
  // Whole tokens, so that a token's slots see one another.
  const std::int32_t tokens = 32 / topk, token = unit.lane / topk, k = unit.lane % topk;
  const unsigned of_token = (topk == 32 ? whole_warp : (1u << topk) - 1u) << (token * topk);
  const auto is_inside = [&](std::int64_t t) { return token < tokens && t < unit.end; };
  const auto expert_of = [&](std::int64_t t) { return is_inside(t) ? choices.legal(t, k) : -1; };
  std::int32_t next = expert_of(unit.begin + token);
  for (std::int64_t base = unit.begin; base < unit.end; base += tokens) {
    const std::int64_t t = base + token;
    const bool inside = is_inside(t);
    const std::int32_t expert = next;
    next = expert_of(t + tokens);  // on its way meanwhile
    unsigned same = __match_any_sync(whole_warp, expert);
    const bool counts = expert >= 0 && before_me(same & of_token) == 0;
    same &= __ballot_sync(whole_warp, counts);
    use(inside, t, k, counts ? expert : -1, same);
    __syncwarp();
  }
}

// For each group of 32 ranks, each lane one token: calls use(t, r, whether token t goes to rank r, lanes that
// go) and keeps the running count of rank r in the lane r % 32.
template <class Choices, class Use>
__device__ void for_each_rank(const Choices& choices, const Unit& unit, int ranks, const std::int32_t* start,
                              std::int32_t* total, Use&& use) {
  for (int first = 0; first < ranks; first += 32) {
    const int mine = first + unit.lane;
    std::int32_t running = start && mine < ranks ? start[mine] : 0;
    for (std::int64_t base = unit.begin; base < unit.end; base += 32) {
      const std::int64_t t = base + unit.lane;
      const unsigned goes_to = t < unit.end ? choices.ranks_of(t, first) : 0u;
      for (int r = first; r < min(ranks, first + 32); ++r) {
        const bool goes = (goes_to >> (r - first)) & 1u;
        const unsigned lanes = __ballot_sync(whole_warp, goes);
        const std::int32_t before = __shfl_sync(whole_warp, running, r - first);
        if (t < unit.end) use(t, r, goes, before + before_me(lanes));
        if (unit.lane == r - first) running += __popc(lanes);
      }
    }
    if (total && mine < ranks) total[mine] = running;
  }
}

// The first kernel's work: unit counts become exclusive sums within the block, and the block's total. Calls
// skip(t, k) for each slot that is not counted.
template <class Choices, class Skip>
__device__ void count_choices(const Choices& choices, const CountScratch& scratch, std::int64_t tokens, int ranks,
                              std::int64_t columns, Skip&& skip) {
  const Unit unit = unit_of(scratch, tokens, columns);
  if (unit.works) {
    for (std::int64_t c = unit.lane; c < columns; c += 32) unit.counts[c] = 0;
    __syncwarp();
    for_each_slot(choices, unit, [&](bool inside, std::int64_t t, std::int32_t k, std::int32_t expert, unsigned same) {
      if (inside && expert < 0) skip(t, k);
      if (expert >= 0 && before_me(same) == 0) unit.counts[ranks + expert] += __popc(same);
    });
    __syncwarp();
    for_each_rank(choices, unit, ranks, nullptr, unit.counts, [](std::int64_t, int, bool, std::int32_t) {});
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int32_t* const counts = unit.counts - warp * columns;
  std::int32_t* const kept = unit.kept - warp * columns;
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    std::int32_t sum = 0;
#pragma unroll 8
    for (int w = 0; w < scratch.units_per_block; ++w) {
      const std::int32_t count = counts[w * columns + c];
      kept[w * columns + c] = sum;
      sum += count;
    }
    scratch.block_counts[blockIdx.x * columns + c] = sum;
  }
}

// In the last block of the first kernel: block totals become exclusive sums; calls use(column, total).
template <class Use>
__device__ void scan_blocks(const CountScratch& scratch, std::int64_t columns, Use&& use) {
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    std::int32_t sum = 0;
#pragma unroll 8
    for (unsigned b = 0; b < gridDim.x; ++b) {
      std::int32_t* const at = scratch.block_counts + b * columns + c;
      const std::int32_t count = __ldcg(at);
      *at = sum;
      sum += count;
    }
    use(c, sum);
  }
}

// The second kernel's work: place(t, k, position among the choices of its expert or -1) for every slot and
// goes(t, r, position among the tokens for r or -1) for every token and rank.
template <class Choices, class Place, class Goes>
__device__ void place_choices(const Choices& choices, const CountScratch& scratch, std::int64_t tokens, int ranks,
                              std::int64_t columns, Place&& place, Goes&& goes) {
  const Unit unit = unit_of(scratch, tokens, columns);
  if (!unit.works) return;
  const std::int32_t* const block = scratch.block_counts + blockIdx.x * columns;
  for (std::int64_t c = unit.lane; c < columns; c += 32) unit.counts[c] = unit.kept[c] + block[c];
  __syncwarp();
  for_each_slot(choices, unit, [&](bool inside, std::int64_t t, std::int32_t k, std::int32_t expert, unsigned same) {
    std::int32_t* const running = unit.counts + ranks + (expert >= 0 ? expert : 0);
    const std::int32_t start = expert >= 0 ? *running : 0;
    if (inside) place(t, k, expert >= 0 ? start + before_me(same) : -1);
    __syncwarp();
    if (expert >= 0 && before_me(same) == 0) *running = start + __popc(same);
  });
  for_each_rank(choices, unit, ranks, unit.counts, nullptr,
                [&](std::int64_t t, int r, bool there, std::int32_t position) { goes(t, r, there ? position : -1); });
}

}  // namespace sluice::cuda
