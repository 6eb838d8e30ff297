// Arguments and results of combine.
#pragma once

#include <cstdint>

#include <sluice/event.h>
#include <sluice/options.h>
#include <sluice/route.h>
#include <sluice/tensor.h>

namespace sluice {

// Brings the rows of a route home and adds them. For each token, in FP32: acc = 0, or bias[0] (+
// bias[1]); for its rows in ascending (rank, expert): acc = acc + w * x, each operation rounded; then
// one rounding to nearest even. Grouped and padded rows of one token on one rank are first summed
// there in the same way from 0 and rounded to the element type, unless single_rounding.
struct CombineArgs {
  // bf16, fp16 or fp32, in the order of the dispatch result: packed [N, H], grouped [M, H], padded [local experts,
  // capacity, H]. H and the element type may differ from the dispatch's. Every row, of output and bias too, begins at a
  // multiple of 16 bytes. Rows that are padding (grouped up to the alignment, padded beyond an expert's count, bounded
  // beyond num_rows) may hold anything, as may their weights and values: they are not added.
  ConstTensorView rows{};
  Route route{};
  // Optional fp32, one per row: packed [N], grouped [M], padded [local experts, capacity]. None: rows are added as they
  // are, also when the dispatch had weights, which are not applied unless they are given here.
  // A packed row stands for all experts of its token on this rank: the [N, K] that dispatch delivers is not
  // for here, but for the weighted sum over those experts that the caller writes into the row.
  ConstTensorView weights{};
  // Optional fp32 side values that travel home unsummed: packed [N, K], grouped [M], padded [local experts, capacity].
  ConstTensorView values{};
  ConstTensorView bias[2]{};  // optional [T, H], type of rows
  TensorView output{};        // optional [T, H]; none = the library's memory
  bool single_rounding = false;
  TensorView waited{};        // optional [R] int64; nanoseconds waited for each rank are added to it

  int channel = 0;                    // these four as in DispatchArgs
  int num_sms = 0;
  Method method = Method::automatic;
  RunOn run_on = RunOn::own_lane;
  // An event of Sluice's own calls, of any communicator of this process (a caller cannot make one): when it has
  // happened, all inputs are there. None: they are there when the call is made, or, on the CUDA engine, when the
  // call's `stream` gets to it. After an operation that failed because a peer was late or gone this call and its
  // channel fail too; after one that was refused it runs.
  Event after{};
};

struct CombineResult {
  TensorView rows{};    // [T, H], type of the input
  TensorView values{};  // [T, K] fp32, 0 where a token has no expert; not given without values
  Event ready{};        // the result is there
  Event inputs_free{};  // no peer reads the inputs any more: they may be overwritten
};

}  // namespace sluice
