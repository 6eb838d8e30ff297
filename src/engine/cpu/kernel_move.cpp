#include <atomic>
#include <cstring>
#include <functional>

#include "core/routing.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/rows.h"

namespace sluice::cpu {

using namespace core;

namespace {

// Rows below this stay in the caches: the destination's GEMM reads them soon. Measured: docs/performance.md.
constexpr std::int64_t stream_from_bytes = 1 << 20;

// One worker's view of a move: where the rows of this rank land.
class Mover {
 public:
  // `scratch`: move_scratch_bytes, for a row that is quantised and behind it its scales.
  Mover(const MoveArgs& args, bool stream, std::byte* scratch)
      : args_(args), stream_(stream), row_(reinterpret_cast<std::uint8_t*>(scratch)),
        scales_(reinterpret_cast<float*>(scratch + limits::row_bytes)) {}

  void token(std::int64_t t) {
    const RouteTables& route = args_.route;
    const std::byte* row = args_.rows + t * args_.row_stride;
    const std::byte* scales = args_.scales + t * args_.scale_row_stride;
    bool quantised = args_.quantise == Quantise::none;
    for (std::int32_t r = 0; r < route.ranks; ++r) {
      const std::int64_t packed = packed_index(route, t, r);
      if (packed < 0) continue;
      if (summed_row(route, t, r) >= 0) send_choices(t, r, packed);
      const std::int64_t to = landing_row(route, *args_.topology, t, r);
      if (to < 0) continue;
      if (!quantised) {
        quantise_row(row_, scales_, row, args_.dtype, args_.elements, args_.quantise);
        row = reinterpret_cast<const std::byte*>(row_);
        scales = reinterpret_cast<const std::byte*>(scales_);
        quantised = true;
      }
      copy(address_of(*args_.addresses, args_.placement.rows[r]) + to * args_.row_bytes, row);
      send_scales(r, to, scales);
    }
  }

 private:
  void copy(std::byte* to, const std::byte* from) const {
    const auto bytes = static_cast<std::size_t>(args_.row_bytes);
    if (stream_) stream_row(to, from, bytes);
    else copy_row(to, from, bytes);
  }

  void send_choices(std::int64_t t, std::int32_t r, std::int64_t packed) const {
    const RouteTables& route = args_.route;
    const auto choice = [&](std::int32_t k) { return local_choice(route, *args_.topology, t, k, r); };
    if (args_.makes_route) {
      auto* ids = reinterpret_cast<std::int32_t*>(address_of(*args_.addresses, args_.placement.ids[r])) + packed * route.topk;
      for (std::int32_t k = 0; k < route.topk; ++k) ids[k] = choice(k);
    }
    if (args_.weights) {
      auto* to = reinterpret_cast<float*>(address_of(*args_.addresses, args_.placement.weights[r])) + packed * route.topk;
      for (std::int32_t k = 0; k < route.topk; ++k) to[k] = choice(k) >= 0 ? args_.weights[t * route.topk + k] : 0.0f;
    }
  }

  void send_scales(std::int32_t r, std::int64_t row, const std::byte* from) const {
    const ScaleShape& shape = args_.scale_shape;
    if (shape.count == 0) return;
    std::byte* const base = address_of(*args_.addresses, args_.placement.scales[r]);
    const std::int64_t ld = args_.placement.scale_stride[r];
    const std::int64_t stride = args_.quantise == Quantise::none ? args_.scale_stride : shape.size;
    if (shape.layout == ScaleLayout::row && stride == shape.size) {
      std::memcpy(base + shape.offset(row, 0, ld), from, static_cast<std::size_t>(shape.count * shape.size));
      return;
    }
    for (std::int64_t s = 0; s < shape.count; ++s) {
      std::memcpy(base + shape.offset(row, s, ld), from + s * stride, static_cast<std::size_t>(shape.size));
    }
  }

  const MoveArgs& args_;
  bool stream_;
  std::uint8_t* row_;
  float* scales_;
};

}  // namespace

void run_kernel(const MoveArgs& args, KernelContext& context) {
  if (args.report->verdict.outcome != Outcome::go) return;
  const std::int64_t bytes = args.route.tokens * args.row_bytes;
  const bool stream = bytes >= stream_from_bytes;
  std::atomic<std::int64_t> parts{0};
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    Mover mover(args, stream, context.scratch + parts.fetch_add(1, std::memory_order_relaxed) * move_scratch_bytes);
    for (std::int64_t t = begin; t < end; ++t) mover.token(t);
    // Streaming stores are not ordered by the release of the CLOSE flag: each worker fences its own.
    // (Test: protocol.streaming_stores_need_their_fence)
    if (stream) stream_fence();
  };
  context.team.parallel(args.route.tokens, context.workers_for(bytes), std::ref(part));
}

}  // namespace sluice::cpu
