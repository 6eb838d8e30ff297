// How a communicator comes to be (options compared, engine made, core put on top), and its calls.
#include <sluice/communicator.h>

#include <unistd.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "api/engines.h"
#include "api/environment.h"
#include "boot/signals_blocked.h"
#include "core/communicator_state.h"
#include "engine/leaving.h"
#include "engine/window.h"
#include "trace/entries.h"
#include "trace/recorder.h"

namespace sluice {

namespace {

struct Prepared {
  core::Config config;
  const api::EngineEntry* engine = nullptr;
  std::shared_ptr<trace::Recorder> recorder{};  // null: nothing is traced
};

Prepared prepare(CommunicatorOptions options, int rank, int ranks) {
  const api::EngineEntry& engine = api::find_engine(options.engine);
  options.engine = engine.name;
  if (options.checks == Checks::by_default) {
    options.checks = api::check_from_environment().value_or(engine.checks) ? Checks::on : Checks::off;
  }
  return {core::resolve(options, rank, ranks, engine.engine_bytes(options.channels, ranks, options.experts)), &engine};
}

constexpr int operations_in_a_file = 4096;  // of a channel, where nobody says

std::shared_ptr<trace::Recorder> make_recorder(const Prepared& prepared) {
  const CommunicatorOptions& options = prepared.config.options;
  const core::Topology& topology = prepared.config.topology;
  const std::string dir = options.trace_dir.empty() ? api::trace_dir_from_environment() : options.trace_dir;
  if (dir.empty() && options.trace_operations == 0) return nullptr;
  if (!prepared.engine->traces) {
    throw ArgumentError(fmt::format("communicator on rank {}: engine \"{}\" is not traced in this version; unset SLUICE_TRACE, and "
                                    "leave trace_dir and trace_operations", topology.rank, options.engine), topology.rank);
  }
  const int operations = options.trace_operations > 0 ? options.trace_operations : operations_in_a_file;
  return std::make_shared<trace::Recorder>(
      trace::Identity{options.engine, topology.rank, topology.ranks, options.channels}, operations, dir);
}

// The line in which every rank proposes a name for the communicator, off the text. Rank 0's is taken.
std::string take_name(std::vector<std::byte>& text) {
  const auto end = std::find(text.begin(), text.end(), std::byte{'\n'});
  std::string name(reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(end - text.begin()));
  if (!name.starts_with("name=")) return {};
  text.erase(text.begin(), end + (end != text.end()));
  return name.substr(5);
}

// A rank that cannot go on says so where the others would wait for it.
Prepared prepare_with_peers(boot::GroupState& group, const CommunicatorOptions& options) {
  Prepared prepared;
  std::string text;
  const boot::Trouble trouble = boot::trouble_of([&] {
    prepared = prepare(options, group.rank(), group.size());
    prepared.recorder = make_recorder(prepared);
    text = fmt::format("name={:08x}{:08x}\noptions=good\n{}", std::random_device()(), std::random_device()(),
                       core::agreement_of(prepared.config.options));
  });
  if (trouble.error) text = "refused: " + trouble.text;
  auto texts = group.all_gather(std::as_bytes(std::span(text)));
  if (trouble.error) std::rethrow_exception(trouble.error);
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const std::string other(reinterpret_cast<const char*>(texts[r].data()), texts[r].size());
    if (other.starts_with("refused: ")) {
      throw PeerError(fmt::format("communicator on rank {}: rank {} {}", group.rank(), r, other), group.rank());
    }
  }
  std::vector<std::string> names;
  for (auto& each : texts) names.push_back(take_name(each));
  core::check_agreement(texts, group.rank());
  if (prepared.recorder) prepared.recorder->name(names.front());
  return prepared;
}

// An error on the way to a communicator says so, whichever part of the library throws it, and has the rank.
template <class Make>
auto named(int rank, Make&& make) {
  const auto sentence = [&](std::string_view text) {
    const std::string place = fmt::format("communicator on rank {}", rank);
    return text.starts_with(place) ? std::string(text) : fmt::format("{}: {}", place, text);
  };
  try {
    return make();
  } catch (const ArgumentError& e) {
    throw ArgumentError(sentence(e.what()), rank);
  } catch (const PeerError& e) {
    throw PeerError(sentence(e.what()), rank);
  } catch (const SystemError& e) {
    throw SystemError(sentence(e.what()), rank);
  } catch (const std::bad_alloc&) {
    throw SystemError(sentence(boot::no_memory), rank);
  }
}

// A forked child has neither the threads nor the windows of its copy: it lets the copy be.
struct LetGo {
  std::shared_ptr<trace::Recorder> recorder;
  pid_t process = getpid();

  void operator()(core::CommunicatorState* mine) const {
    if (getpid() != process) return;
    if (!engine::LettingGo::here()) {
      delete mine;
      return;
    }
    const boot::SignalsBlocked blocked;
    try {
      std::thread([mine, kept = recorder] { delete mine; }).detach();
    } catch (const std::system_error&) {  // it stays: to end the process would be worse
    }
  }
};

// On all ranks or on none: what a rank could not do, the others hear in the exchange behind it, and the last one, the
// barrier, needs no memory once a rank has taken part in it.
std::shared_ptr<core::CommunicatorState> make(const std::shared_ptr<boot::GroupState>& group, const CommunicatorOptions& options) {
  const Prepared prepared = prepare_with_peers(*group, options);
  engine::EngineSpec spec;
  spec.topology = prepared.config.topology;
  spec.page = prepared.config.page;
  spec.arena_bytes = prepared.config.size.arena_bytes;
  spec.deadline_ms = prepared.config.options.deadline_ms;
  spec.workers = prepared.config.options.workers;
  auto engine = prepared.engine->make(spec, group);
  std::shared_ptr<core::CommunicatorState> made;
  engine::together(*group, [&] {
    const auto& recorder = prepared.recorder;
    auto state = std::make_unique<core::CommunicatorState>(prepared.config, group->nodes(), std::move(engine),
                                                           recorder ? recorder->ring() : core::TraceRing{});
    made.reset(state.release(), LetGo{recorder});
  });
  group->barrier();
  return made;
}

core::CommunicatorState& checked(const std::shared_ptr<core::CommunicatorState>& state) {
  if (!state) throw ArgumentError("this communicator is empty: it was moved from or never made");
  return *state;
}

void check_rank(const char* name, int rank, int size) {
  if (rank < 0 || rank >= size) throw ArgumentError(fmt::format("{}: rank = {} is outside 0 to {}", name, rank, size - 1));
}

}  // namespace

Communicator::Communicator(const Group& group, const CommunicatorOptions& options) {
  if (!group.valid()) throw ArgumentError("communicator: the group is empty");
  const auto& state = group.state();
  state_ = named(state->rank(), [&] { return boot::or_give_up(*state, [&] { return make(state, options); }); });
}

WindowSize Communicator::size_of(const CommunicatorOptions& options, int ranks) {
  return prepare(options, 0, ranks).config.size;
}

Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

DispatchResult Communicator::dispatch(const DispatchArgs& args, Stream stream) {
  return checked(state_).dispatch(args, stream.handle);
}
CombineResult Communicator::combine(const CombineArgs& args, Stream stream) {
  return checked(state_).combine(args, stream.handle);
}
TensorView Communicator::allocate(std::int64_t rows, std::int64_t row_bytes, DataType dtype) {
  return checked(state_).allocate(rows, row_bytes, dtype);
}
void Communicator::used_on(const TensorView& view, Stream stream) {
  checked(state_).used_on(view, stream.handle);
}
RoutingCounts Communicator::count(const DispatchArgs& args) const { return checked(state_).count(args); }

int Communicator::rank() const { return checked(state_).config().topology.rank; }
int Communicator::size() const { return checked(state_).config().topology.ranks; }
int Communicator::nodes() const {
  int most = 0;
  for (const int node : checked(state_).nodes()) most = std::max(most, node);
  return most + 1;
}

int Communicator::node_of(int rank) const {
  check_rank("node_of", rank, size());
  return state_->nodes()[static_cast<std::size_t>(rank)];
}

int Communicator::local_rank() const {
  const auto& nodes = checked(state_).nodes();
  const auto me = nodes.begin() + rank();
  return static_cast<int>(std::count(nodes.begin(), me, *me));
}

int Communicator::first_expert(int rank) const {
  check_rank("first_expert", rank, size() + 1);
  return state_->config().topology.first_expert[rank];
}

int Communicator::local_experts() const { return first_expert(rank() + 1) - first_expert(rank()); }
const std::string& Communicator::engine() const { return checked(state_).config().options.engine; }
int Communicator::num_sms() const { return checked(state_).engine().default_num_sms(); }
WindowSize Communicator::window_size() const { return checked(state_).config().size; }

std::vector<OperationTrace> Communicator::trace() const {
  const core::TraceRing& ring = checked(state_).traced();
  if (!ring.words) {
    throw ArgumentError("trace: nothing is traced; set trace_operations or trace_dir in the options, or SLUICE_TRACE", rank());
  }
  return trace::read_ring(ring);
}

void Communicator::set_deadline_ms(int deadline_ms) {
  if (deadline_ms < 0) throw ArgumentError(fmt::format("set_deadline_ms: {} is negative", deadline_ms), rank());
  checked(state_).set_deadline_ms(deadline_ms);
}

}  // namespace sluice
