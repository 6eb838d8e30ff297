#include "cli/engine_views.h"

#include <sluice/info.h>

namespace sluice::cli {
namespace {

std::size_t bytes_of(const BasicTensorView<const void>& view) {
  if (view.elements() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < view.dims; ++d)
    last += (view.shape[static_cast<std::size_t>(d)] - 1) * view.strides[static_cast<std::size_t>(d)];
  return static_cast<std::size_t>((last + 1) * size_of(view.dtype));
}

// Host memory that an argument names -> memory of the engine.
void move_in(MemoryKind kind, ConstTensorView& view) {
  const std::size_t bytes = bytes_of(view);
  if (kind == MemoryKind::host || bytes == 0) return;
  const auto data = share(kind, bytes);
  store(kind, data.get(), view.data, bytes);
  view.data = data.get();
  view.owner = data;
}

}  // namespace

void take_gpu(const CommonFlags& flags, const RankContext& context) {
  if (flags.engine != "cuda") return;
  for (const EngineInfo& engine : engines()) {
    if (engine.name == "cuda" && engine.usable) use_gpu_of(context.rank);
  }
}

MemoryKind memory_kind(const Communicator& comm) { return memory_kind(comm.engine()); }

DispatchArgs for_engine(const Communicator& comm, DispatchArgs args) {
  for (ConstTensorView* view : {&args.rows, &args.scales, &args.expert_ids, &args.weights})
    move_in(memory_kind(comm), *view);
  return args;
}

TensorView on_host(const Communicator& comm, const TensorView& view) {
  const MemoryKind kind = memory_kind(comm);
  const std::size_t bytes = bytes_of(ConstTensorView(view));
  if (kind == MemoryKind::host || bytes == 0) return view;
  const auto data = share(MemoryKind::host, bytes);
  fetch(kind, data.get(), view.data, bytes);
  TensorView copy = view;
  copy.data = data.get();
  copy.owner = data;
  return copy;
}

DispatchResult on_host(const Communicator& comm, DispatchResult result) {
  for (TensorView* view : {&result.rows, &result.scales, &result.local_ids, &result.weights, &result.num_rows,
                           &result.counts, &result.aligned_counts, &result.offsets, &result.dropped})
    *view = on_host(comm, *view);
  return result;
}

CombineResult on_host(const Communicator& comm, CombineResult result) {
  for (TensorView* view : {&result.rows, &result.values}) *view = on_host(comm, *view);
  return result;
}

void put_back(const Communicator& comm, const TensorView& host, const TensorView& view) {
  if (host.data != view.data) store(memory_kind(comm), view.data, host.data, bytes_of(ConstTensorView(view)));
}

TensorView counters(const Communicator& comm) {
  const MemoryKind kind = memory_kind(comm) == MemoryKind::host ? MemoryKind::host : MemoryKind::pinned;
  const std::size_t bytes = static_cast<std::size_t>(comm.size()) * sizeof(std::int64_t);
  const auto data = share(kind, bytes);
  std::memset(data.get(), 0, bytes);
  TensorView view(data.get(), DataType::int64, comm.size());
  view.owner = data;
  return view;
}

}  // namespace sluice::cli
