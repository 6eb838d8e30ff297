// How a communicator comes to be: options compared, engine made, core put on top.
#include <sluice/communicator.h>

#include <unistd.h>

#include <thread>

#include <fmt/format.h>

#include <sluice/errors.h>

#include "api/engines.h"
#include "api/environment.h"
#include "core/communicator_state.h"
#include "engine/leaving.h"

namespace sluice {

namespace {

struct Prepared {
  core::Config config;
  const api::EngineEntry* engine = nullptr;
};

Prepared prepare(CommunicatorOptions options, int rank, int ranks) {
  const api::EngineEntry& engine = api::find_engine(options.engine);
  options.engine = engine.name;
  if (options.checks == Checks::by_default) {
    if (const auto check = api::check_from_environment()) options.checks = *check ? Checks::on : Checks::off;
  }
  return {core::resolve(options, rank, ranks, engine.engine_bytes(options.channels, ranks, options.experts)), &engine};
}

// A rank that cannot go on says so where the others would wait for it.
Prepared prepare_with_peers(boot::GroupState& group, const CommunicatorOptions& options) {
  Prepared prepared;
  std::string text;
  std::exception_ptr error;
  try {
    prepared = prepare(options, group.rank(), group.size());
    text = "options=good\n" + core::agreement_of(prepared.config.options);
  } catch (const Error& e) {
    error = std::current_exception();
    text = std::string("refused: ") + e.what();
  }
  const auto texts = group.all_gather(std::as_bytes(std::span(text)));
  if (error) std::rethrow_exception(error);
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const std::string other(reinterpret_cast<const char*>(texts[r].data()), texts[r].size());
    if (other.starts_with("refused: ")) {
      throw PeerError(fmt::format("communicator on rank {}: rank {} {}", group.rank(), r, other), group.rank());
    }
  }
  core::check_agreement(texts, group.rank());
  return prepared;
}

}  // namespace

Communicator::Communicator(const Group& group, const CommunicatorOptions& options) {
  if (!group.valid()) throw ArgumentError("communicator: the group is empty");
  const auto& state = group.state();
  const Prepared prepared = prepare_with_peers(*state, options);
  engine::EngineSpec spec;
  spec.topology = prepared.config.topology;
  spec.page = prepared.config.page;
  spec.arena_bytes = prepared.config.size.arena_bytes;
  spec.deadline_ms = prepared.config.options.deadline_ms;
  spec.workers = prepared.config.options.workers;
  auto made = std::make_unique<core::CommunicatorState>(prepared.config, state->nodes(), prepared.engine->make(spec, state));
  // A forked child has neither the threads nor the windows of its copy: it lets the copy be.
  state_ = std::shared_ptr<core::CommunicatorState>(made.release(), [process = getpid()](core::CommunicatorState* mine) {
    if (getpid() != process) return;
    if (engine::LettingGo::here()) std::thread([mine] { delete mine; }).detach();
    else delete mine;
  });
}

WindowSize Communicator::size_of(const CommunicatorOptions& options, int ranks) {
  return prepare(options, 0, ranks).config.size;
}

}  // namespace sluice
