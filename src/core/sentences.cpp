#include "core/sentences.h"

#include <fmt/format.h>

#include <sluice/errors.h>
#include <sluice/options.h>
#include <sluice/tensor.h>

namespace sluice::core {

namespace {

const char* name_of(Field field) {
  constexpr const char* names[] = {"operation", "running number of the operation", "route", "kind of routing", "layout",
                                   "element type", "hidden size", "topk", "scale bytes per row", "counts", "alignment",
                                   "quantise", "scale layout", "on_overflow", "presence of weights", "presence of values",
                                   "single_rounding"};
  static_assert(sizeof(names) / sizeof(names[0]) == field_count);
  return names[static_cast<int>(field)];
}

std::string value_name(Field field, std::int64_t value) {
  const auto pick = [&](std::initializer_list<const char*> names) -> std::string {
    return value >= 0 && value < static_cast<std::int64_t>(names.size()) ? names.begin()[value] : fmt::format("{}", value);
  };
  switch (field) {
    case Field::route: return value == 0 ? "none" : fmt::format("that of dispatch number {} on channel {}",
                                                                     value % routes_of_channel, value / routes_of_channel);
    case Field::kind: return pick({"none", "dispatch", "combine"});
    case Field::routing: return pick({"expert ids", "a rank mask", "a route"});
    case Field::layout: return pick({sluice::name_of(Layout::packed), sluice::name_of(Layout::grouped), sluice::name_of(Layout::padded)});
    case Field::dtype: return sluice::name_of(static_cast<DataType>(value));
    case Field::counts: return pick({"exact", "bounded"});
    case Field::quantise: return pick({"none", "e4m3", "e4m3_power_of_two"});
    case Field::scale_layout: return pick({"row", "column"});
    case Field::on_overflow: return pick({"error", "drop"});
    case Field::weights: case Field::values: case Field::single_rounding: return pick({"no", "yes"});
    default: return fmt::format("{}", value);
  }
}

std::string where(const Context& c) {
  return fmt::format("{} on rank {} of {}, channel {}", name_of(c.kind), c.rank, c.ranks, c.channel);
}

// What became of the dispatch that made the route, in its own words; empty when this rank cannot tell.
std::string story_of_route(const Context& context) {
  if (!context.made) return {};
  Context dispatch = context;
  dispatch.kind = OperationKind::dispatch;
  dispatch.channel = context.made_on;
  dispatch.made = nullptr;
  dispatch.capacity_from = CapacityFrom::unknown;
  const std::exception_ptr error = error_of(*context.made, context.made->failure.failed != 0, dispatch);
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& said) {
    return fmt::format(" ({})", said.what());
  }
  return {};
}

std::string refusal(const Verdict& verdict, const Context& context) {
  const std::string who = fmt::format("rank {}", verdict.rank);
  if (verdict.refusal == Refusal::id) return fmt::format("{} refused: {}", who, sentence(verdict.fault));
  if (verdict.refusal == Refusal::record) return fmt::format("{} published places outside of its window; its memory is damaged", who);
  if (verdict.refusal == Refusal::route) return "the dispatch that made the route did not complete" + story_of_route(context);
  std::string reason = verdict.reason;  // ends: compare_records leaves the last byte 0
  for (char& c : reason) c = c < ' ' || c > '~' ? '?' : c;
  return fmt::format("{} refused: {}", who, reason);
}

// What a peer's capacity came from is not known here: then all that may help is said.
std::string cure_of_no_room(CapacityFrom from) {
  constexpr const char* caller = "raise the capacity, or leave out what is too much by on_overflow = OnOverflow::drop";
  constexpr const char* arena = "without a capacity the rows take what the arena has free: make the communicator for this hidden, "
                                "layout and alignment, or raise arena_bytes, or drop earlier results";
  switch (from) {
    case CapacityFrom::caller: return caller;
    case CapacityFrom::output: return "give a larger output, or leave out what is too much by on_overflow = OnOverflow::drop";
    case CapacityFrom::arena: return arena;
    default: return fmt::format("{}; {}", caller, arena);
  }
}

// What a combine has too little of is rows to read.
std::string no_room(const Verdict& verdict, const Context& context) {
  if (context.kind == OperationKind::combine) {
    return fmt::format("rank {} must give {} rows, as many as the dispatch of this route delivered there, but gives {}; no row "
                       "was moved: give them all, padding included", verdict.rank, verdict.need, verdict.capacity);
  }
  const std::string place = verdict.expert < 0 ? fmt::format("rank {}", verdict.rank)
                                               : fmt::format("expert {} on rank {}", verdict.expert, verdict.rank);
  const CapacityFrom from = verdict.rank == context.rank ? context.capacity_from : CapacityFrom::unknown;
  if (from == CapacityFrom::arena) {
    return fmt::format("{} needs {} rows, but its arena has room for {}; no row was moved: {}", place, verdict.need,
                       verdict.capacity, cure_of_no_room(from));
  }
  return fmt::format("{} needs {} rows, but its capacity is {}; no row was moved: {}", place, verdict.need, verdict.capacity,
                     cure_of_no_room(from));
}

std::exception_ptr error_of(const Verdict& verdict, const Report& report, const Context& context) {
  const int rank = context.rank;
  switch (verdict.outcome) {
    case Outcome::refused:
      if (report.fault.problem != IdProblem::none) {  // here, whoever else refused
        return std::make_exception_ptr(ArgumentError(
            fmt::format("{}: {}", where(context), sentence(report.fault)), rank));
      }
      return std::make_exception_ptr(PeerError(
          fmt::format("{}: {}; no row was moved and the communicator stays usable", where(context), refusal(verdict, context)), rank));
    case Outcome::differs:
      return std::make_exception_ptr(PeerError(
          fmt::format("{}: ranks differ in {}: rank {} has {}, rank {} has {}; no row was moved and the "
                      "communicator stays usable", where(context),
                      name_of(verdict.field), verdict.rank, value_name(verdict.field, verdict.value), verdict.other,
                      value_name(verdict.field, verdict.other_value)), rank));
    case Outcome::no_room:
      return std::make_exception_ptr(CapacityError(fmt::format("{}: {}", where(context), no_room(verdict, context)), rank));
    default: return nullptr;
  }
}

}  // namespace

const char* name_of(OperationKind kind) {
  constexpr const char* names[] = {"operation", "dispatch", "combine"};
  return names[static_cast<int>(kind)];
}

std::string sentence(const IdFault& fault) {
  if (fault.problem == IdProblem::twice) {
    return fmt::format("expert {} stands twice in row {} of expert_ids, again in column {}; name each expert once, or switch "
                       "the checks off", fault.value, fault.row, fault.column);
  }
  return fmt::format("expert id {} in row {}, column {} of expert_ids is outside 0 to {} (-1 = no expert)", fault.value,
                     fault.row, fault.column, fault.experts - 1);
}

std::string sentence(const Status& s, const Context& context) {
  if (s.cause == Cause::block_lost) {
    return fmt::format("{}: an operation whose data or memory it needs had failed; make a new communicator", where(context));
  }
  const std::string who = s.by == context.rank ? "this rank" : fmt::format("rank {}", s.by);
  if (s.cause == Cause::device) {
    return fmt::format("{}: the device of {} failed with {} {}; make a new communicator", where(context),
                       s.by < 0 ? "this rank" : who, context.device_error, s.code);
  }
  if (s.cause == Cause::no_memory) {
    return fmt::format("{}: {} had no memory left to run {} number {}; make a new communicator", where(context), who,
                       name_of(s.kind), s.operation);
  }
  const char* const stage = s.stage == Stage::open ? "OPEN" : "CLOSE";
  const std::string operation = fmt::format("{} number {}", name_of(s.awaited == s.operation ? s.kind : OperationKind::none),
                                            s.awaited);
  const std::string seen = fmt::format("{} of {} peers had arrived", s.arrived, s.expected);
  if (s.cause == Cause::leaving) return fmt::format("{}: {} was destroyed while it waited", where(context), who);
  if (s.cause == Cause::gone) {
    return fmt::format("{}: rank {} is gone; {} noticed while it waited for its {} of {} ({}); make a new communicator",
                       where(context), s.waiting_for, who, stage, operation, seen);
  }
  return fmt::format("{}: {} gave up after {} ms, waiting for {} of {} by rank {} ({}); make a new communicator",
                     where(context), who, s.waited_ms, stage, operation, s.waiting_for, seen);
}

std::exception_ptr error_of(const Report& report, bool failed, const Context& context) {
  if (failed) {
    return std::make_exception_ptr(PeerError(sentence(report.failure, context), context.rank));
  }
  return error_of(report.verdict, report, context);
}

}  // namespace sluice::core
