// Two ranks, as threads: rows quantised on the way, no wait of the host for counts, and a route used twice.
#include <sluice/sluice.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

using enum sluice::DataType;

static float from_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float size = exponent > 0 ? std::ldexp(8.0f + static_cast<float>(mantissa), exponent - 10)
                                   : std::ldexp(static_cast<float>(mantissa), -9);
  return bits & 128 ? -size : size;
}

static void rank_main(sluice::Group group, bool& right) {
  constexpr std::int64_t tokens = 4, hidden = 256, topk = 2, capacity = 16;  // capacity: rows that a result holds
  sluice::Communicator comm(group, {.max_tokens = tokens, .experts = 4, .hidden = hidden, .topk = topk, .dtype = fp32,
                                    .layout = sluice::Layout::grouped, .capacity = capacity});
  std::vector<float> x(tokens * hidden), weights(tokens * topk, 0.5f), done(capacity * hidden);
  std::vector<std::int32_t> ids{0, 1, 0, 2, 3, 2, 1, 3};

  sluice::DispatchArgs out{.rows = {x.data(), fp32, tokens, hidden}, .weights = {weights.data(), fp32, tokens, topk},
                           .layout = sluice::Layout::grouped, .counts = sluice::Counts::bounded,
                           .quantise = sluice::Quantise::e4m3};
  sluice::Route route;
  for (int batch = 0; batch < 2; ++batch) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i + 1)) * static_cast<float>(batch + 1);
    // The first batch chooses; the second goes the same way, and nothing is counted again.
    if (batch == 0) {
      out.expert_ids = {ids.data(), int32, tokens, topk};
      out.capacity = capacity;
    } else {
      out.expert_ids = {};
      out.capacity = 0;  // the route's
      out.route = route;
    }
    const sluice::DispatchResult sent = comm.dispatch(out);  // queues, and waits for nobody
    sent.ready.wait();
    route = sent.route;

    // The experts, which change nothing here: each row is turned back to fp32. Rows after num_rows are padding.
    const std::int64_t rows = *sent.num_rows.as<std::int64_t>();
    for (std::int64_t i = 0; i < rows * hidden; ++i)
      done[static_cast<std::size_t>(i)] = from_e4m3(sent.rows.as<std::uint8_t>()[i]) * sent.scales.as<float>()[i / 128];
    const sluice::CombineResult home = comm.combine(
        {.rows = {done.data(), fp32, capacity, hidden}, .route = route, .weights = sent.weights});
    home.ready.wait();
    home.inputs_free.wait();  // before `done` is written again
    float worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(home.rows.as<float>()[i] - x[i]));
    std::printf("rank %d, batch %d: %ld rows came, largest error %.3f\n", comm.rank(), batch, static_cast<long>(rows), worst);
    right = right && worst < 0.08f * static_cast<float>(batch + 1);  // e4m3 has 3 bits behind the point
  }
}

int main() {
  bool right[2] = {true, true};
  std::vector<sluice::Group> groups = sluice::Group::threads(2);
  std::thread other(rank_main, std::move(groups[1]), std::ref(right[1]));
  rank_main(std::move(groups[0]), right[0]);
  other.join();
  std::puts(right[0] && right[1] ? "every token came home, near to what it was" : "WRONG");
  return right[0] && right[1] ? 0 : 1;
}
