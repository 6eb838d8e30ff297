#include "engine/cpu/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/rows_sum.cpp"
#include <hwy/foreach_target.h>
// The order matters.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "engine/cpu/rows.h"
#include "engine/cpu/rows_scalar.h"
#include "engine/cpu/rows_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

// The two biases, or the one, as floats in the order of the accumulators. Apart from the sum, so that it
// is compiled once for all types and lengths of rows.
template <DataType type, Order order, class D>
HWY_NOINLINE void start_of_sum(D d, const SumRows& s, std::int64_t at, std::int64_t pairs, float* to) {
  constexpr std::int64_t n = static_cast<std::int64_t>(hn::MaxLanes(d));
  for (std::int64_t p = 0; p < pairs; ++p) {
    Pair<D> x = load_pair<type, order>(d, s.bias[0], at + 2 * n * p);
    if (s.bias[1]) {
      const Pair<D> y = load_pair<type, order>(d, s.bias[1], at + 2 * n * p);
      x = {hn::Add(x.a, y.a), hn::Add(x.b, y.b)};
    }
    hn::Store(x.a, d, to + 2 * n * p);
    hn::Store(x.b, d, to + 2 * n * p + n);
  }
}

template <DataType type>
HWY_NOINLINE float start_of_element(const SumRows& s, std::int64_t at) {
  const float x = element<type>(s.bias[0], at);
  return s.bias[1] ? numbers::sum(x, element<type>(s.bias[1], at)) : x;
}

template <DataType in_type, DataType out_type, Order order, bool weighted>
struct Sum {
  static constexpr DataType in = in_type, out = out_type;

  // One element, for the ends of a row that fill no vector.
  static void one(const SumRows& s, std::int64_t at) {
    float acc = s.bias[0] ? start_of_element<out>(s, at) : 0.0f;
    for (int r = 0; r < s.count; ++r) {
      const float x = element<in>(s.rows[r], at);
      acc = numbers::sum(acc, weighted ? numbers::product(s.weights[r], x) : x);
    }
    set_element<out>(s.out, at, acc);
  }

  // 2N * pairs elements: the accumulators stay in registers while the rows pass. A sum takes too many
  // instructions for the processor to look ahead to the next lines by itself, so they are fetched here,
  // `ahead` bytes on, and never past the row: a line of a stranger's costs as much as one of ours.
  template <int pairs, bool streaming, class D>
  static HWY_INLINE void chunk(D d, const SumRows& s, std::int64_t at, std::int64_t ahead) {
    constexpr std::int64_t n = static_cast<std::int64_t>(hn::MaxLanes(d)), step = 2 * n;
    Pair<D> acc[pairs];
    if (s.bias[0]) {
      HWY_ALIGN float start[pairs * step];
      start_of_sum<out, order>(d, s, at, pairs, start);
      for (int p = 0; p < pairs; ++p) {
        acc[p] = {hn::Load(d, start + p * step), hn::Load(d, start + p * step + n)};
      }
    } else {
      for (int p = 0; p < pairs; ++p) acc[p] = {hn::Zero(d), hn::Zero(d)};
    }
    for (int r = 0; r < s.count; ++r) {
      const void* row = s.rows[r];
      hwy::Prefetch(static_cast<const std::uint8_t*>(row) + ahead);
      const auto w = hn::Set(d, weighted ? s.weights[r] : 1.0f);
      for (int p = 0; p < pairs; ++p) {
        Pair<D> x = load_pair<in, order>(d, row, at + p * step);
        if constexpr (weighted) x = {hn::Mul(w, x.a), hn::Mul(w, x.b)};
        acc[p] = {hn::Add(acc[p].a, x.a), hn::Add(acc[p].b, x.b)};
      }
    }
    for (int p = 0; p < pairs; ++p) store_pair<out, order, streaming>(d, acc[p], s.out, at + p * step);
  }

  static std::int64_t fetch_distance(const SumRows& s) { return s.count <= 2 ? 1024 : 512; }

  // Fetches what lies before the first line that a chunk fetches.
  static void fetch_heads(const SumRows& s) {
    const std::int64_t bytes = s.n * size_of(in), distance = fetch_distance(s);
    for (int r = 0; r < s.count; ++r) {
      for (std::int64_t i = 0; i < distance && i < bytes; i += 64) {
        hwy::Prefetch(static_cast<const std::uint8_t*>(s.rows[r]) + i);
      }
    }
  }

  // As many whole chunks of [at, end) as fit; returns where it stopped.
  template <int pairs, bool streaming, class D>
  static HWY_INLINE std::int64_t chunks(D d, const SumRows& s, std::int64_t at, std::int64_t end) {
    constexpr std::int64_t step = 2 * pairs * static_cast<std::int64_t>(hn::MaxLanes(d));
    const std::int64_t distance = fetch_distance(s), last = s.n * size_of(in) - 1;
    for (; at + step <= end; at += step) {
      const std::int64_t ahead = at * size_of(in) + distance;
      chunk<pairs, streaming>(d, s, at, ahead < last ? ahead : last);
    }
    return at;
  }

  // [at, end), 16 bytes of a bf16 row and then single elements at a time.
  static HWY_NOINLINE void ends(const SumRows& s, std::int64_t at, std::int64_t end) {
    at = chunks<1, false>(hn::CappedTag<float, 4>(), s, at, end);
    for (; at < end; ++at) one(s, at);
  }

  template <bool streaming>
  static void span(const SumRows& s) {
    const hn::ScalableTag<float> d;
    // One cache line of each row at a time, if the registers allow it.
    constexpr auto pair_bytes = static_cast<int>(2 * hn::MaxLanes(d)) * static_cast<int>(size_of(in));
    constexpr int pairs = pair_bytes >= 64 ? 1 : pair_bytes >= 16 ? 64 / pair_bytes : 4;
    std::int64_t at = 0;
    fetch_heads(s);
    if constexpr (streaming) {
      // Whole vectors are streamed to aligned places.
      constexpr std::uintptr_t vector = sizeof(float) * hn::MaxLanes(d);
      const auto misaligned = reinterpret_cast<std::uintptr_t>(s.out) % vector;
      const std::int64_t head = misaligned ? static_cast<std::int64_t>(vector - misaligned) / size_of(out) : 0;
      at = head < s.n ? head : s.n;
      if (at > 0) ends(s, 0, at);
    }
    at = chunks<pairs, streaming>(d, s, at, s.n);
    if (at < s.n) ends(s, at, s.n);
  }

  static void row(const SumRows& s) { s.stream ? span<true>(s) : span<false>(s); }
};

template <DataType in, DataType out, Order order>
void sum_with_types(const SumRows& s) {
  s.weights ? Sum<in, out, order, true>::row(s) : Sum<in, out, order, false>::row(s);
}

template <DataType in>
void sum_from(const SumRows& s) {
  switch (s.out_type) {
    case DataType::bf16:
      return sum_with_types<in, DataType::bf16, in == DataType::bf16 ? Order::even_odd : Order::halves>(s);
    case DataType::fp16: return sum_with_types<in, DataType::fp16, Order::halves>(s);
    default: return sum_with_types<in, DataType::fp32, Order::halves>(s);
  }
}

void sum_rows_here(const SumRows& s) {
  switch (s.in_type) {
    case DataType::bf16: return sum_from<DataType::bf16>(s);
    case DataType::fp16: return sum_from<DataType::fp16>(s);
    default: return sum_from<DataType::fp32>(s);
  }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {

HWY_EXPORT(sum_rows_here);

void sum_rows(const SumRows& sum) { HWY_DYNAMIC_DISPATCH(sum_rows_here)(sum); }

}  // namespace sluice::cpu
#endif
