// Promises C1 to C10: calls.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>

#include "cli/bench_rows.h"
#include "cli/check.h"
#include "cli/engine_views.h"
#include "cli/exchange.h"

namespace sluice::cli {
namespace {

void require_right(const std::string& what, const std::string& wrong) {
  require(wrong.empty(), what + ", " + wrong);
}

void bring_home(CheckContext& context, Communicator& comm, const Exchange& exchange, const BenchCase& bench,
                const DispatchResult& sent) {
  const CombineResult home = comm.combine(exchange.combine_args(comm, sent));
  home.ready.wait();
  require_right("combine", check_combine(bench, context.rank(), on_host(comm, home)));
}

// Two routes alive, used in both orders, also for other data, after their ids were overwritten.
void routes_are_reused(CheckContext& context) {
  const BenchCase a = check_case(context, {.routing = "uniform"});
  BenchCase b = check_case(context, {.tokens = {31, 17, 5}, .routing = "zipf:1"});
  Communicator comm(context.ranks.group, check_options(context, a));
  const Exchange exchange_a(a, context.rank());
  const Exchange exchange_b(b, context.rank());
  std::vector<std::int32_t> ids = a.decisions[context.rank()].ids;
  DispatchArgs out = exchange_a.dispatch_args();
  out.expert_ids = ConstTensorView(ids.data(), DataType::int32, a.decisions[context.rank()].tokens(), a.topk);
  const DispatchResult sent_a = send(comm, out);
  const DispatchResult sent_b = send(comm, exchange_b.dispatch_args());
  std::fill(ids.begin(), ids.end(), 0);
  bring_home(context, comm, exchange_b, b, sent_b);
  bring_home(context, comm, exchange_a, a, sent_a);
  out.expert_ids = {};
  out.route = sent_a.route;
  const DispatchResult again = send(comm, out);
  require_right("dispatch over an old route", check_dispatch(a, context.rank(), on_host(comm, again)));
  bring_home(context, comm, exchange_a, a, again);
  bring_home(context, comm, exchange_b, b, sent_b);
}

// Bounded calls are queued one behind the other; nothing waits but the end.
void bounded_calls_only_queue(CheckContext& context) {
  const BenchCase bench = check_case(context, {.counts = Counts::bounded});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const Exchange exchange(bench, context.rank());
  for (int round = 0; round < 20; ++round) {
    const DispatchResult sent = comm.dispatch(for_engine(comm, exchange.dispatch_args()));
    CombineArgs back;
    back.rows = sent.rows;
    back.route = sent.route;
    const CombineResult home = comm.combine(back);
    home.ready.wait();
    require_right("dispatch", check_dispatch(bench, context.rank(), on_host(comm, sent)));
  }
}

void two_channels_at_once(CheckContext& context) {
  const BenchCase bench = check_case(context, {});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const Exchange exchange(bench, context.rank());
  DispatchResult sent = send(comm, exchange.dispatch_args());
  for (int round = 0; round < 20; ++round) {
    CombineArgs back = exchange.combine_args(comm, sent);
    back.channel = 0;
    const CombineResult home = comm.combine(back);
    DispatchArgs out = exchange.dispatch_args();
    out.channel = 1;
    DispatchResult next = comm.dispatch(for_engine(comm, out));
    home.ready.wait();
    next.ready.wait();
    require_right("combine", check_combine(bench, context.rank(), on_host(comm, home)));
    require_right("dispatch", check_dispatch(bench, context.rank(), on_host(comm, next)));
    sent = std::move(next);
  }
}

void require_clean_padding(const BenchCase& bench, const DispatchResult& sent) {
  const std::int64_t rows = sent.num_rows.as<std::int64_t>()[0];
  require(sent.rows.shape[0] == 128, fmt::format("{} rows in the shape, 128 asked for", sent.rows.shape[0]));
  for (std::int64_t i = rows * bench.topk; i < 128 * bench.topk; ++i) {
    require(sent.local_ids.as<std::int32_t>()[i] == -1,
            fmt::format("an id past the end is {}", sent.local_ids.as<std::int32_t>()[i]));
    require(sent.weights.as<float>()[i] == 0.0F, "a weight past the end is not 0");
  }
  for (std::int64_t i = rows * bench.row_bytes(); i < 128 * bench.row_bytes(); ++i)
    require(sent.rows.as<std::uint8_t>()[i] == 0, "a row past the end is not zero");
}

void padding_names_nobody(CheckContext& context) {
  const BenchCase bench = check_case(context, {.tokens = {3, 1}, .counts = Counts::bounded, .capacity = 128});
  CommunicatorOptions options = check_options(context, bench);
  options.capacity = 128;
  Communicator comm(context.ranks.group, options);
  const Exchange exchange(bench, context.rank());
  DispatchArgs out = exchange.dispatch_args();
  out.zero_padding = true;
  for (int round = 0; round < 3; ++round) {
    const DispatchResult result = send(comm, out);
    const DispatchResult sent = on_host(comm, result);
    require_right("dispatch", check_dispatch(bench, context.rank(), sent));
    require_clean_padding(bench, sent);
    std::memset(sent.rows.data, 0xFF, static_cast<std::size_t>(128 * bench.row_bytes()));
    std::memset(sent.local_ids.data, 7, static_cast<std::size_t>(128 * bench.topk) * 4);
    std::memset(sent.weights.data, 0xFF, static_cast<std::size_t>(128 * bench.topk) * 4);
    put_back(comm, sent.rows, result.rows);
    put_back(comm, sent.local_ids, result.local_ids);
    put_back(comm, sent.weights, result.weights);
  }
}

void too_little_room_is_found(CheckContext& context) {
  const BenchCase bench = check_case(context, {.capacity = 1});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const Exchange exchange(bench, context.rank());
  error_of("CapacityError", [&] { send(comm, exchange.dispatch_args()); });
  DispatchArgs drop = exchange.dispatch_args();
  drop.on_overflow = OnOverflow::drop;
  drop.counts = Counts::bounded;
  const DispatchResult sent = send(comm, drop);
  const auto rows = static_cast<std::int64_t>(arrivals(bench, context.rank(), 1).size());
  const std::int64_t dropped = on_host(comm, sent.dropped).as<std::int64_t>()[0];
  require(dropped == std::max<std::int64_t>(0, rows - 1),
          fmt::format("{} rows dropped of {}, where 1 has room", dropped, rows));
  exchange_and_check(context, comm, check_case(context, {}));
}

void one_rank_refuses(CheckContext& context) {
  const BenchCase bench = check_case(context, {});
  Communicator comm(context.ranks.group, check_options(context, bench));
  BenchCase large = bench;
  if (context.rank() == 0) large = check_case(context, {.tokens = {129}});
  const Exchange exchange(large, context.rank());
  const std::string message = error_of(context.rank() == 0 ? "ArgumentError" : "PeerError",
                                       [&] { send(comm, exchange.dispatch_args()); });
  if (context.rank() == 0) {
    require(message.find("129") != std::string::npos && message.find("128") != std::string::npos,
            "the error lacks value or limit: " + message);
  } else {
    require(message.find("rank 0") != std::string::npos, "the error does not name rank 0: " + message);
  }
  exchange_and_check(context, comm, bench);
}

double resident_megabytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0;
  double resident = 0;
  file >> total >> resident;
  return resident * 4096 / 1e6;
}

void memory_does_not_grow(CheckContext& context) {
  const BenchCase bench = check_case(context, {});
  Communicator comm(context.ranks.group, check_options(context, bench));
  const Exchange exchange(bench, context.rank());
  double before = 0;
  // The C library's allocator keeps what a first thousand calls made it take.
  for (int round = 0; round < 2000; ++round) {
    if (round == 1000) before = resident_megabytes();
    // References go while the operation may still run.
    DispatchArgs out = exchange.dispatch_args();
    const auto rows =
        std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(out.rows.elements() * 2));
    out.rows.data = rows->data();
    out.rows.owner = rows;
    out.counts = Counts::bounded;
    const Event ready = comm.dispatch(for_engine(comm, out)).ready;
    if (round % 10 == 9) ready.wait();
  }
  send(comm, exchange.dispatch_args());
  const double grown = resident_megabytes() - before;
  require(grown < 16, fmt::format("{:.1f} MB more after 1000 calls", grown));
}

void several_communicators(CheckContext& context) {
  const BenchCase bench = check_case(context, {});
  Communicator first(context.ranks.group, check_options(context, bench));
  Communicator second(context.ranks.group, check_options(context, bench));
  for (int round = 0; round < 5; ++round) {
    exchange_and_check(context, first, bench);
    exchange_and_check(context, second, bench, 1);
  }
}

}  // namespace

void add_call_promises(std::vector<Promise>& list) {
  list.push_back({"C1", "routes_are_reused_in_any_order", routes_are_reused});
  list.push_back({"C2", "bounded_calls_only_queue", bounded_calls_only_queue});
  list.push_back({"C3", "two_channels_run_at_once", two_channels_at_once});
  list.push_back({"C4", "padding_names_nobody", padding_names_nobody});
  list.push_back({"C5", "too_little_room_is_found_before_a_row_moves", too_little_room_is_found});
  list.push_back({"C6", "one_rank_refuses_and_all_learn_of_it", one_rank_refuses});
  list.push_back({"C7", "memory_does_not_grow_with_calls", memory_does_not_grow});
  list.push_back({"C8", "num_sms_is_obeyed", nullptr,
                  "it takes kernels that hold the SMs of a GPU; it is in the test suite"});
  list.push_back({"C9", "composes_with_other_collectives", nullptr,
                  "it takes kernels that hold the SMs of a GPU; it is in the test suite"});
  list.push_back({"C10", "several_communicators_on_one_group", several_communicators});
}

}  // namespace sluice::cli
