// Calls are written with named members; what is left out has its default, and -Wextra must not mind.
#include <utility>

#include <sluice/sluice.h>

sluice::CombineResult layer(sluice::Communicator& comm, sluice::ConstTensorView x, sluice::ConstTensorView ids,
                            sluice::ConstTensorView weights) {
  auto sent = comm.dispatch({.rows = x, .expert_ids = ids, .weights = weights, .layout = sluice::Layout::grouped,
                             .counts = sluice::Counts::bounded});
  return comm.combine({.rows = sent.rows, .route = sent.route, .weights = sent.weights});
}

sluice::Communicator make(const sluice::Group& group) {
  return sluice::Communicator(group, {.max_tokens = 128, .experts = 8, .hidden = 1024, .topk = 2});
}

sluice::Group meet() { return sluice::Group::from_environment({.timeout_ms = 1000}); }
