// The yardstick of docs/performance.md: dispatch and combine as a good engineer would write them with MPI
// on one machine. One copy per (token, rank); rows for the own rank are written in place; received rows
// land in place; rows for others are packed in chunks that are still in cache when MPI sends them;
// counts, local ids and weights are part of dispatch.
//
//   mpicxx -O3 -march=native -std=c++20 bench/peers/mpi_moe.cpp -o build/bin/mpi_moe
//   mpirun -n 2 build/bin/mpi_moe --tokens 4096 --hidden 7168 --topk 8 --experts 256 --iters 20
//
// Prints one JSON line per operation with the iteration rule of `sluice bench`: all ranks meet at a
// barrier, an iteration's time is the slowest rank's. The result is checked first.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

struct Shape {
  int ranks = 1, rank = 0;
  int tokens = 4096, hidden = 7168, topk = 8, experts = 256;
  int iters = 20, warmup = 5, chunk_rows = 16;
  unsigned seed = 1;
};

using Row = std::vector<std::uint16_t>;

float to_float(std::uint16_t x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

std::uint16_t to_bf16(float f) {
  std::uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// What one rank holds: its tokens, its decisions, and what came.
class Layer {
 public:
  explicit Layer(const Shape& shape) : s_(shape), send_(s_.ranks), sent_(s_.ranks), received_(s_.ranks), base_(s_.ranks + 1) {
    std::mt19937 random(s_.seed * 1000 + static_cast<unsigned>(s_.rank));
    rows_.resize(static_cast<std::size_t>(s_.tokens) * s_.hidden);
    for (auto& x : rows_) x = to_bf16(static_cast<float>(random() % 2000) / 1000.0f - 1.0f);
    ids_.resize(static_cast<std::size_t>(s_.tokens) * s_.topk);
    weights_.assign(ids_.size(), 1.0f / static_cast<float>(s_.topk));
    std::vector<int> all(s_.experts);
    for (int e = 0; e < s_.experts; ++e) all[e] = e;
    for (int t = 0; t < s_.tokens; ++t) {
      for (int k = 0; k < s_.topk; ++k) {
        std::swap(all[k], all[k + static_cast<int>(random() % static_cast<unsigned>(s_.experts - k))]);
        ids_[static_cast<std::size_t>(t) * s_.topk + k] = all[k];
      }
    }
    out_.resize(rows_.size());
    arrived_.resize(static_cast<std::size_t>(s_.ranks) * s_.tokens * s_.hidden);
    meta_.resize(static_cast<std::size_t>(s_.ranks) * s_.tokens * s_.topk * 2);
    pack_.resize(static_cast<std::size_t>(slots) * s_.chunk_rows * s_.hidden);
    // First touch is not part of the measurement.
    std::fill(arrived_.begin(), arrived_.end(), std::uint16_t{1});
  }

  void dispatch() {
    plan();
    exchange_counts();
    post_receives();
    send_metadata();
    std::vector<MPI_Request> slot(slots, MPI_REQUEST_NULL);
    int next = 0;
    copy_own();
    // Peers in turn, so that no receiver is overrun.
    for (int step = 1; step < s_.ranks; ++step) {
      const int peer = (s_.rank + step) % s_.ranks;
      for (int begin = 0; begin < sent_[peer]; begin += s_.chunk_rows) {
        const int end = std::min(begin + s_.chunk_rows, sent_[peer]);
        MPI_Wait(&slot[next], MPI_STATUS_IGNORE);
        std::uint16_t* const to = pack_.data() + static_cast<std::size_t>(next) * s_.chunk_rows * s_.hidden;
        for (int i = begin; i < end; ++i) copy(to + static_cast<std::size_t>(i - begin) * s_.hidden, row(send_[peer][i]));
        MPI_Isend(to, (end - begin) * s_.hidden, MPI_UINT16_T, peer, 1, MPI_COMM_WORLD, &slot[next]);
        next = (next + 1) % slots;
      }
    }
    MPI_Waitall(slots, slot.data(), MPI_STATUSES_IGNORE);
    wait_all();
  }

  // Rows of one home rank are contiguous in arrival order, so they are sent from where they lie. Tokens
  // are summed in blocks, while the received rows are in cache.
  void combine() {
    std::vector<MPI_Request> sends;
    for (int step = 1; step < s_.ranks; ++step) {
      const int home = (s_.rank + step) % s_.ranks;
      for (int begin = 0; begin < received_[home]; begin += s_.chunk_rows) {
        const int end = std::min(begin + s_.chunk_rows, received_[home]);
        sends.push_back(MPI_REQUEST_NULL);
        MPI_Isend(arrived_.data() + (static_cast<std::size_t>(base_[home]) + begin) * s_.hidden, (end - begin) * s_.hidden,
                  MPI_UINT16_T, home, 2, MPI_COMM_WORLD, &sends.back());
      }
    }
    sum_tokens();
    MPI_Waitall(static_cast<int>(sends.size()), sends.data(), MPI_STATUSES_IGNORE);
  }

  // Every row that came is the sender's row; every sum is the token's row times the ranks it went to.
  bool correct() {
    dispatch();
    for (int t = 0; t < s_.tokens; ++t) {
      const int own = index_[static_cast<std::size_t>(t) * s_.ranks + s_.rank];
      if (own >= 0 && std::memcmp(arrived_.data() + (static_cast<std::size_t>(base_[s_.rank]) + own) * s_.hidden, row(t),
                                  static_cast<std::size_t>(s_.hidden) * 2) != 0) return false;
    }
    combine();
    for (int t = 0; t < s_.tokens; ++t) {
      int ranks = 0;
      for (int r = 0; r < s_.ranks; ++r) ranks += index_[static_cast<std::size_t>(t) * s_.ranks + r] >= 0;
      for (int h = 0; h < s_.hidden; ++h) {
        float sum = 0;
        for (int r = 0; r < ranks; ++r) sum += to_float(row(t)[h]);
        if (out_[static_cast<std::size_t>(t) * s_.hidden + h] != to_bf16(sum)) return false;
      }
    }
    return true;
  }

  std::int64_t bytes_received() const { return static_cast<std::int64_t>(base_[s_.ranks]) * s_.hidden * 2; }

 private:
  static constexpr int slots = 4;

  const std::uint16_t* row(int t) const { return rows_.data() + static_cast<std::size_t>(t) * s_.hidden; }
  void copy(std::uint16_t* to, const std::uint16_t* from) const { std::memcpy(to, from, static_cast<std::size_t>(s_.hidden) * 2); }

  void plan() {
    const int per_rank = s_.experts / s_.ranks;
    index_.assign(static_cast<std::size_t>(s_.tokens) * s_.ranks, -1);
    for (auto& list : send_) list.clear();
    for (int t = 0; t < s_.tokens; ++t) {
      for (int k = 0; k < s_.topk; ++k) {
        const int r = ids_[static_cast<std::size_t>(t) * s_.topk + k] / per_rank;
        int& at = index_[static_cast<std::size_t>(t) * s_.ranks + r];
        if (at >= 0) continue;
        at = static_cast<int>(send_[r].size());
        send_[r].push_back(t);
      }
    }
    for (int r = 0; r < s_.ranks; ++r) sent_[r] = static_cast<int>(send_[r].size());
  }

  void exchange_counts() {
    MPI_Alltoall(sent_.data(), 1, MPI_INT, received_.data(), 1, MPI_INT, MPI_COMM_WORLD);
    base_[0] = 0;
    for (int r = 0; r < s_.ranks; ++r) base_[r + 1] = base_[r] + received_[r];
  }

  void post_receives() {
    requests_.clear();
    for (int step = 1; step < s_.ranks; ++step) {
      const int peer = (s_.rank - step + s_.ranks) % s_.ranks;
      for (int begin = 0; begin < received_[peer]; begin += s_.chunk_rows) {
        const int count = std::min(s_.chunk_rows, received_[peer] - begin);
        requests_.push_back(MPI_REQUEST_NULL);
        MPI_Irecv(arrived_.data() + (static_cast<std::size_t>(base_[peer]) + begin) * s_.hidden, count * s_.hidden,
                  MPI_UINT16_T, peer, 1, MPI_COMM_WORLD, &requests_.back());
      }
      requests_.push_back(MPI_REQUEST_NULL);
      MPI_Irecv(meta_.data() + static_cast<std::size_t>(base_[peer]) * s_.topk * 2, received_[peer] * s_.topk * 2, MPI_INT, peer,
                3, MPI_COMM_WORLD, &requests_.back());
    }
  }

  void fill_metadata(int peer, int* to) const {
    const int per_rank = s_.experts / s_.ranks;
    for (const int t : send_[peer]) {
      for (int k = 0; k < s_.topk; ++k) {
        const std::size_t slot = static_cast<std::size_t>(t) * s_.topk + k;
        const bool here = ids_[slot] / per_rank == peer;
        const float weight = here ? weights_[slot] : 0.0f;
        *to++ = here ? ids_[slot] - peer * per_rank : -1;
        std::memcpy(to++, &weight, 4);
      }
    }
  }

  void send_metadata() {
    meta_out_.resize(static_cast<std::size_t>(s_.ranks));
    for (int r = 0; r < s_.ranks; ++r) {
      if (r == s_.rank) {
        fill_metadata(r, meta_.data() + static_cast<std::size_t>(base_[r]) * s_.topk * 2);
        continue;
      }
      meta_out_[r].resize(static_cast<std::size_t>(sent_[r]) * s_.topk * 2);
      fill_metadata(r, meta_out_[r].data());
      requests_.push_back(MPI_REQUEST_NULL);
      MPI_Isend(meta_out_[r].data(), static_cast<int>(meta_out_[r].size()), MPI_INT, r, 3, MPI_COMM_WORLD, &requests_.back());
    }
  }

  void copy_own() {
    for (int i = 0; i < sent_[s_.rank]; ++i) {
      copy(arrived_.data() + (static_cast<std::size_t>(base_[s_.rank]) + i) * s_.hidden, row(send_[s_.rank][i]));
    }
  }

  void wait_all() { MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE); }

  // The rows of a peer come in chunks in my token order; two chunks per peer are in flight.
  struct Incoming {
    std::vector<std::uint16_t> buffer;
    MPI_Request request[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    int ready = 0;  // rows that are there
    int posted = 0;
  };

  void post(Incoming& in, int peer) {
    if (in.posted >= sent_[peer]) return;
    const int which = in.posted / s_.chunk_rows % 2;
    const int count = std::min(s_.chunk_rows, sent_[peer] - in.posted);
    MPI_Irecv(in.buffer.data() + static_cast<std::size_t>(which) * s_.chunk_rows * s_.hidden, count * s_.hidden, MPI_UINT16_T,
              peer, 2, MPI_COMM_WORLD, &in.request[which]);
    in.posted += count;
  }

  const std::uint16_t* take(Incoming& in, int peer, int i) {
    if (i >= in.ready) {
      // The chunk before has been summed: its buffer receives the next but one.
      if (i > 0) post(in, peer);
      MPI_Wait(&in.request[i / s_.chunk_rows % 2], MPI_STATUS_IGNORE);
      in.ready = std::min(i + s_.chunk_rows, sent_[peer]);
    }
    return in.buffer.data() + static_cast<std::size_t>(i % (2 * s_.chunk_rows)) * s_.hidden;
  }

  void sum_tokens() {
    std::vector<Incoming> in(static_cast<std::size_t>(s_.ranks));
    for (int r = 0; r < s_.ranks; ++r) {
      if (r == s_.rank) continue;
      in[r].buffer.resize(static_cast<std::size_t>(2 * s_.chunk_rows) * s_.hidden);
      post(in[r], r);
      post(in[r], r);
    }
    std::vector<float> sum(static_cast<std::size_t>(s_.hidden));
    for (int t = 0; t < s_.tokens; ++t) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int r = 0; r < s_.ranks; ++r) {
        const int i = index_[static_cast<std::size_t>(t) * s_.ranks + r];
        if (i < 0) continue;
        const std::uint16_t* const x = r == s_.rank ? arrived_.data() + (static_cast<std::size_t>(base_[r]) + i) * s_.hidden
                                                    : take(in[r], r, i);
        for (int h = 0; h < s_.hidden; ++h) sum[h] += to_float(x[h]);
      }
      std::uint16_t* const out = out_.data() + static_cast<std::size_t>(t) * s_.hidden;
      for (int h = 0; h < s_.hidden; ++h) out[h] = to_bf16(sum[h]);
    }
  }

  Shape s_;
  std::vector<std::uint16_t> rows_, out_, arrived_, pack_;
  std::vector<int> ids_, meta_, index_;
  std::vector<float> weights_;
  std::vector<std::vector<int>> send_, meta_out_;
  std::vector<int> sent_, received_, base_;
  std::vector<MPI_Request> requests_;
};

template <class Operation>
void measure(const Shape& s, const char* name, std::int64_t bytes, Operation&& operation) {
  std::vector<double> times;
  for (int i = 0; i < s.warmup + s.iters; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    operation();
    double mine = (MPI_Wtime() - begin) * 1e6, slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= s.warmup) times.push_back(slowest);
  }
  std::sort(times.begin(), times.end());
  if (s.rank != 0) return;
  std::printf("{\"record\":\"bench\",\"sys\":\"mpi\",\"op\":\"%s\",\"ranks\":%d,\"tokens\":%d,\"hidden\":%d,\"topk\":%d,\"experts\":%d,"
              "\"dtype\":\"bf16\",\"iters\":%d,\"p10_us\":%.1f,\"p50_us\":%.1f,\"p90_us\":%.1f,\"bytes_recv\":%lld,\"ok\":true}\n",
              name, s.ranks, s.tokens, s.hidden, s.topk, s.experts, s.iters, times[times.size() / 10], times[times.size() / 2],
              times[times.size() * 9 / 10], static_cast<long long>(bytes));
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Shape s;
  MPI_Comm_size(MPI_COMM_WORLD, &s.ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const int value = std::atoi(argv[i + 1]);
    if (flag == "--tokens") s.tokens = value;
    if (flag == "--hidden") s.hidden = value;
    if (flag == "--topk") s.topk = value;
    if (flag == "--experts") s.experts = value;
    if (flag == "--iters") s.iters = value;
    if (flag == "--warmup") s.warmup = value;
    if (flag == "--chunk-rows") s.chunk_rows = value;
    if (flag == "--seed") s.seed = static_cast<unsigned>(value);
  }
  int status = 0;
  {
    Layer layer(s);
    int good = layer.correct(), all = 0;
    MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (all) {
      measure(s, "dispatch", layer.bytes_received(), [&] { layer.dispatch(); });
      measure(s, "combine", layer.bytes_received(), [&] { layer.combine(); });
    } else {
      if (s.rank == 0) std::printf("{\"record\":\"error\",\"kind\":\"wrong values\"}\n");
      status = 1;
    }
  }
  MPI_Finalize();
  return status;
}
