// Promises F1 to F8: failing and leaving.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <thread>

#include "cli/bench_rows.h"
#include "cli/check.h"
#include "cli/engine_views.h"
#include "cli/exchange.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void need_peers(const CheckContext& context) {
  if (context.size() < 2) throw Skip("needs at least 2 ranks");
}

// Late by less than the deadline is fine; later is an error on every rank, in time, that names the rank.
void late_peer(CheckContext& context) {
  need_peers(context);
  const BenchCase bench = check_case(context, {});
  constexpr int short_deadline_ms = 400;
  CommunicatorOptions options = check_options(context, bench);
  options.deadline_ms = 10'000;
  Communicator comm(context.ranks.group, options);
  const int late = context.size() - 1;
  if (context.rank() == late) std::this_thread::sleep_for(milliseconds(100));
  exchange_and_check(context, comm, bench);
  comm.set_deadline_ms(short_deadline_ms);
  context.ranks.group.barrier();
  const Exchange exchange(bench, context.rank());
  if (context.rank() == late) {
    std::this_thread::sleep_for(milliseconds(short_deadline_ms + 1000));
    error_of("PeerError", [&] { send(comm, exchange.dispatch_args()); });
    return;
  }
  const auto begin = Clock::now();
  const std::string message = error_of("PeerError", [&] { send(comm, exchange.dispatch_args()); });
  const double took = milliseconds_since(begin);
  require(took < short_deadline_ms + 1000,
          fmt::format("the error came after {:.0f} ms with a deadline of {} ms", took, short_deadline_ms));
  require(message.find(fmt::format("{}", late)) != std::string::npos,
          "the error does not name the late rank: " + message);
}

// The last rank ends without a word, with another operation behind it.
void lost_peer(CheckContext& context) {
  need_peers(context);
  if (context.ranks.launch != Launch::processes) throw Skip("needs --launch processes");
  const BenchCase bench = check_case(context, {});
  CommunicatorOptions options = check_options(context, bench);
  options.deadline_ms = 30'000;
  Communicator comm(context.ranks.group, options);
  exchange_and_check(context, comm, bench);
  if (context.rank() == context.size() - 1) context.ranks.leave("pass\n");
  const auto begin = Clock::now();
  const Exchange exchange(bench, context.rank());
  error_of("PeerError", [&] { send(comm, exchange.dispatch_args()); });
  const double took = milliseconds_since(begin);
  require(took < 5000, fmt::format("a dead process was noticed after {:.0f} ms", took));
}

void different_options(CheckContext& context) {
  const BenchCase bench = check_case(context, {});
  CommunicatorOptions options = check_options(context, bench);
  options.max_tokens = context.rank() == 0 ? 128 : 256;
  const std::string message = error_of("ArgumentError", [&] { Communicator(context.ranks.group, options); });
  require(message.find("128") != std::string::npos && message.find("256") != std::string::npos,
          "the error lacks a value: " + message);
}

void disagreement(CheckContext& context) {
  need_peers(context);
  different_options(context);
  const BenchCase bench = check_case(context, {});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const BenchCase other = check_case(context, {.topk = context.rank() == 0 ? 3 : 4});
  const Exchange differs(other, context.rank());
  const auto begin = Clock::now();
  error_of("PeerError", [&] { send(comm, differs.dispatch_args()); });
  require(milliseconds_since(begin) < 5000, "the ranks waited for a deadline");
  exchange_and_check(context, comm, bench);
}

// Everything is dropped while operations may still run.
void left_in_a_hurry(CheckContext& context) {
  const BenchCase bench = check_case(context, {.counts = Counts::bounded});
  const auto begin = Clock::now();
  for (int round = 0; round < 3; ++round) {
    const Exchange exchange(bench, context.rank());
    std::optional<DispatchResult> sent;
    {
      Communicator comm(context.ranks.group, check_options(context, bench));
      sent = comm.dispatch(for_engine(comm, exchange.dispatch_args()));
    }
    require(sent->ready.query(), "the operation had not ended when its communicator had");
  }
  require(milliseconds_since(begin) < 15'000,
          fmt::format("leaving took {:.0f} ms", milliseconds_since(begin)));
}

void waiting_is_attributed(CheckContext& context) {
  need_peers(context);
  const BenchCase bench = check_case(context, {});
  Communicator comm(context.ranks.group, check_options(context, bench));
  exchange_and_check(context, comm, bench);
  const Exchange exchange(bench, context.rank());
  DispatchArgs out = exchange.dispatch_args();
  out.waited = counters(comm);
  context.ranks.group.barrier();
  if (context.rank() == 1) std::this_thread::sleep_for(milliseconds(200));
  send(comm, out);
  const double for_late = static_cast<double>(out.waited.as<std::int64_t>()[1]) * 1e-6;
  if (context.rank() != 1)
    require(for_late > 150 && for_late < 400,
            fmt::format("rank 1 was 200 ms late, {:.1f} ms were counted for it", for_late));
}

// Deadlines run out in different order on different ranks; nobody may report success without the rows.
void nobody_succeeds_alone(CheckContext& context) {
  need_peers(context);
  const BenchCase bench = check_case(context, {});
  Communicator comm(context.ranks.group, check_options(context, bench));
  exchange_and_check(context, comm, bench);
  comm.set_deadline_ms(100 + 150 * context.rank());
  context.ranks.group.barrier();
  const Exchange exchange(bench, context.rank());
  if (context.rank() == context.size() - 1)
    std::this_thread::sleep_for(milliseconds(200 + 150 * context.size()));
  error_of("PeerError", [&] { send(comm, exchange.dispatch_args()); });
  error_of("PeerError", [&] { send(comm, exchange.dispatch_args()); });
}

}  // namespace

void add_failure_promises(std::vector<Promise>& list) {
  list.push_back({"F1", "a_late_peer_is_waited_for_until_the_deadline", late_peer});
  list.push_back({"F2", "a_dead_process_is_noticed_at_once", lost_peer});
  list.push_back({"F3", "disagreement_is_an_error_with_both_values", disagreement});
  list.push_back({"F4", "a_communicator_may_go_at_any_time", left_in_a_hurry});
  list.push_back({"F5", "partial_peer_access_is_one_message", nullptr,
                  "needs GPUs that do not reach each other; it is in the test suite"});
  list.push_back({"F6", "strangers_stay_outside", nullptr, "needs a second user; it is in the test suite"});
  list.push_back({"F7", "waiting_is_attributed_to_the_late_rank", waiting_is_attributed});
  list.push_back({"F8", "nobody_succeeds_without_its_rows", nobody_succeeds_alone});
}

}  // namespace sluice::cli
