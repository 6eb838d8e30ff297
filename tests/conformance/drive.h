// Makes the calls that a problem describes and holds the results against the oracle.
#pragma once

#include <sluice/sluice.h>

#include <cstring>
#include <memory>
#include <vector>

#include "harness.h"
#include "memory.h"
#include "oracle.h"

namespace conformance {

// A problem with what every rank must get: made once, before the ranks start.
struct Job {
  Problem problem;
  std::vector<Arrivals> arrivals;

  explicit Job(const Recipe& recipe) : problem(make_problem(recipe)), arrivals(arrivals_of_all(problem)) {}
};

// The caller's memory for one dispatch of one rank, and the arguments that name it.
struct Brought {
  sluice::DispatchArgs args;
  CallVector<std::int32_t> ids32;
  CallVector<std::int64_t> ids64;
  CallVector<float> weights;
  CallVector<std::uint8_t> mask;
  CallBytes rows, scales, output;
  CallVector<std::int32_t> load;
  CallVector<std::int64_t> waited;
};

// How the caller's memory is laid out.
struct Manner {
  bool strided = false;     // rows and scales with gaps between them
  bool own_output = false;  // the caller's memory for the rows, canaries around it
  bool load = false;        // expert_load
  bool waited = false;
  int num_sms = 0;
};

// The object must outlive the operation.
std::unique_ptr<Brought> bring(const Problem& problem, int rank, const Manner& manner = {});

// What a result holds, rows tight and row-major whatever its strides are.
Bytes tight(const sluice::TensorView& view);

template <class T>
std::vector<T> elements_of(const sluice::TensorView& view) {
  const Bytes bytes = tight(view);
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// Writes `value` over a whole result without gaps.
template <class T>
void overwrite(const sluice::TensorView& view, T value) {
  const std::vector<T> values(static_cast<std::size_t>(view.elements()), value);
  store(view.data, values.data(), values.size() * sizeof(T));
}

// Waits for the result and copies it out.
Image observe(const Problem& problem, const sluice::DispatchResult& result);

// Adds a test failure for every difference between a dispatch result and the oracle.
void check_dispatch(const Job& job, int rank, const sluice::DispatchResult& result, const Brought& brought);

enum class Memory { own, allocated, in_place };

struct Returned {
  sluice::CombineArgs args;
  CallVector<float> weights, values;
  CallBytes rows, bias[2], output;
  CallVector<std::int64_t> waited;
};

// Fills the inputs of a combine as combine_row() says; NaN wherever no row is.
std::unique_ptr<Returned> give_back(sluice::Communicator& comm, const Job& job, int rank,
                                    const sluice::DispatchResult& sent, const CombineCall& call,
                                    Memory memory = Memory::own, bool own_output = false);

void check_combine(const Job& job, int rank, const CombineCall& call, const sluice::CombineResult& result);

struct Round {
  Manner manner;
  CombineCall combine;
  Memory memory = Memory::own;
  bool combine_too = true;
};

// dispatch, check, combine, check. Collective.
void round_trip(sluice::Communicator& comm, const Job& job, int rank, const Round& round = {});

// A round trip up to its combine.
struct Half {
  std::unique_ptr<Brought> brought;
  sluice::DispatchResult sent;
  CombineCall call;
  std::unique_ptr<Returned> returned;
};

// dispatch, check, and the inputs of the combine. Collective.
Half first_half(sluice::Communicator& comm, const Job& job, int rank);

// The whole of it in a communicator of its own, on every rank.
void run_job(Rank& self, const Job& job, const Round& round = {});

// A combine call that fits the problem.
CombineCall combine_call(const Problem& problem, DataType type = DataType::bf16);

}  // namespace conformance
