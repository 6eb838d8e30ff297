// The promises of the library as short tests that a user can run on his machine, through the public
// interface alone.
#pragma once

#include <sluice/sluice.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/bench_case.h"
#include "cli/launch.h"

namespace sluice::cli {

// Thrown by a check that cannot be made here.
class Skip : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thrown by a check whose promise is broken.
class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
void require(bool holds, const std::string& otherwise);

struct CheckContext {
  RankContext& ranks;
  const CommonFlags& flags;

  int rank() const { return ranks.rank; }
  int size() const { return ranks.size; }
  // A number of every rank, in rank order. Collective.
  std::vector<double> gather(double mine) const;
};

struct Promise {
  const char* id;
  const char* name;
  std::function<void(CheckContext&)> check;  // empty: `reason` says why it is not checked here
  const char* reason = "";
};

// All, in the order of docs/promises.md.
std::vector<Promise> all_promises();
void add_value_promises(std::vector<Promise>& list);
void add_shape_promises(std::vector<Promise>& list);
void add_call_promises(std::vector<Promise>& list);
void add_failure_promises(std::vector<Promise>& list);

// A small case for checks: T differs per rank, experts do not divide evenly.
struct CheckShape {
  std::vector<std::int64_t> tokens{};  // of each rank; empty: 40 + 7 x rank
  int hidden = 64;
  int experts = 0;  // 0: 4 x ranks + 1
  int topk = 4;
  DataType dtype = DataType::bf16;
  Layout layout = Layout::packed;
  Counts counts = Counts::exact;
  std::int64_t capacity = 0;
  std::int64_t alignment = 1;
  bool quantise = false;
  std::string routing = "zipf:0.5";
};
BenchCase check_case(const CheckContext& context, const CheckShape& shape);

// Options of a communicator for it, with a deadline that suits a check.
CommunicatorOptions check_options(const CheckContext& context, const BenchCase& bench);

// Dispatches what is in host memory, and waits.
DispatchResult send(Communicator& comm, const DispatchArgs& args);

// Dispatches, checks, combines, checks. Throws Broken.
void exchange_and_check(CheckContext& context, Communicator& comm, const BenchCase& bench, int channel = 0);

// The same for a shape, on a communicator of its own.
void exchange_shape(CheckContext& context, const CheckShape& shape);

// The message of the Error that `call` must throw; Broken when it does not, or throws another class.
std::string error_of(const char* kind, const std::function<void()>& call);

}  // namespace sluice::cli
