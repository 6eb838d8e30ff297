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
  ConstTensorView rows{};     // in the shape and order of the dispatch result: packed [N, H], grouped [M, H], padded [E/R, capacity, H]; bf16, fp16, fp32; every row, of output and bias too, at a multiple of 16 bytes
  Route route{};
  // Optional fp32, one per row: packed [N], grouped [M], padded [E/R, capacity]. None: rows are added as they are.
  ConstTensorView weights{};
  // Optional fp32 side values that travel home unsummed: packed [N, K], grouped [M], padded [E/R, capacity].
  ConstTensorView values{};
  ConstTensorView bias[2]{};  // optional [T, H], type of rows
  TensorView output{};        // optional [T, H]; none = the library's memory
  bool single_rounding = false;
  TensorView waited{};        // optional [R] int64; nanoseconds waited for each rank are added to it

  int channel = 0;
  int num_sms = 0;
  Method method = Method::automatic;
  RunOn run_on = RunOn::own_lane;
  Event after{};              // the rows are there (none: when the call is made)
};

struct CombineResult {
  TensorView rows{};    // [T, H], type of the input
  TensorView values{};  // [T, K] fp32, 0 where a token has no expert; not given without values
  Event ready{};        // the result is there
  Event inputs_free{};  // no peer reads the inputs any more: they may be overwritten
};

}  // namespace sluice
