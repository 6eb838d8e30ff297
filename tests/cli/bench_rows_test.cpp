// The bench's own oracle accepts right results and finds every kind of wrong one.
#include "cli/bench_rows.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cli/bench_copy.h"
#include "cli/check.h"
#include "cli/exchange.h"

namespace sluice::cli {
namespace {

// Runs `body` on two ranks with a case of this shape.
void on_two_ranks(const CheckShape& shape,
                  const std::function<void(const BenchCase&, const Exchange&, Communicator&, int)>& body) {
  const CommonFlags flags;
  Launcher(Launch::threads, 2, 2).run([&](RankContext& context) {
    const CheckContext check{context, flags};
    const BenchCase bench = check_case(check, shape);
    Communicator comm(context.group, check_options(check, bench));
    body(bench, Exchange(bench, context.rank), comm, context.rank);
    return std::string();
  });
}

struct Flip {
  const char* what;
  std::function<TensorView(DispatchResult&)> where;
};

TEST(bench_rows, a_flipped_byte_anywhere_in_a_dispatch_result_is_found) {
  const Flip flips[] = {{"rows", [](DispatchResult& r) { return r.rows; }},
                        {"scales", [](DispatchResult& r) { return r.scales; }},
                        {"local_ids", [](DispatchResult& r) { return r.local_ids; }},
                        {"weights", [](DispatchResult& r) { return r.weights; }},
                        {"counts", [](DispatchResult& r) { return r.counts; }},
                        {"num_rows", [](DispatchResult& r) { return r.num_rows; }}};
  for (const Layout layout : {Layout::packed, Layout::grouped}) {
    on_two_ranks({.hidden = 256, .dtype = DataType::e4m3, .layout = layout},
                 [&](const BenchCase& bench, const Exchange& exchange, Communicator& comm, int rank) {
                   DispatchResult sent = comm.dispatch(exchange.dispatch_args());
                   sent.ready.wait();
                   EXPECT_EQ(check_dispatch(bench, rank, sent), "");
                   for (const Flip& flip : flips) {
                     const TensorView view = flip.where(sent);
                     if (!view.given()) continue;
                     auto* bytes = view.as<std::uint8_t>();
                     bytes[0] ^= 1;
                     EXPECT_NE(check_dispatch(bench, rank, sent), "") << flip.what;
                     bytes[0] ^= 1;
                   }
                   EXPECT_EQ(check_dispatch(bench, rank, sent), "");
                 });
  }
}

TEST(bench_rows, a_flipped_bit_in_a_sum_is_found) {
  for (const Layout layout : {Layout::packed, Layout::grouped, Layout::padded}) {
    on_two_ranks({.layout = layout},
                 [&](const BenchCase& bench, const Exchange& exchange, Communicator& comm, int rank) {
                   const DispatchResult sent = comm.dispatch(exchange.dispatch_args());
                   sent.ready.wait();
                   const CombineResult home = comm.combine(exchange.combine_args(comm, sent));
                   home.ready.wait();
                   EXPECT_EQ(check_combine(bench, rank, home), "");
                   home.rows.as<std::uint16_t>()[home.rows.elements() - 1] ^= 1;
                   EXPECT_NE(check_combine(bench, rank, home), "");
                 });
  }
}

TEST(bench_rows, filled_rows_are_finite_and_depend_on_their_key) {
  for (const DataType type : {DataType::bf16, DataType::fp16, DataType::fp32}) {
    std::vector<std::uint8_t> a(4096);
    std::vector<std::uint8_t> b(4096);
    const std::int64_t n = 4096 / size_of(type);
    fill_row(a.data(), type, n, 1);
    fill_row(b.data(), type, n, 2);
    EXPECT_NE(a, b);
  }
}

TEST(bench_copy, copies_every_row_and_reads_as_many_as_combine) {
  constexpr std::size_t row_size = 48;
  for (const bool combine : {false, true}) {
    for (const CopyForm form : {CopyForm::stream, CopyForm::library}) {
      for (const int workers : {1, 3}) {
        const std::int64_t rows = 25;
        const std::size_t window = copy_window_bytes(combine, rows, row_size, 3);
        const Buffer windows(window * 3);
        const Buffer own(10 * row_size);
        for (std::size_t i = 0; i < window * 3; ++i)
          windows.data()[i] = static_cast<std::byte>(combine ? i * 7 : 0);
        for (std::size_t i = 0; i < 10 * row_size; ++i) own.data()[i] = static_cast<std::byte>(i * 3);
        CopyWork work{{windows.data(), window, 3}, 2, row_size, rows, 10, own.data(), own.data()};
        CopyTeam team(work, combine, workers);
        for (int i = 0; i < 3; ++i) {
          team.prepare(form);
          team.run([] {});
        }
        if (combine) {
          // Token 0 got rows 0 and 1; row 1 is the first of the second peer, rank 1.
          EXPECT_EQ(std::memcmp(own.data(), windows.data() + window, row_size), 0);
        } else {
          for (std::int64_t row = 0; row < rows; ++row) {
            EXPECT_EQ(std::memcmp(windows.data() + row * static_cast<std::int64_t>(row_size),
                                  own.data() + row % 10 * static_cast<std::int64_t>(row_size), row_size),
                      0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::cli
