// The arithmetic of agreement, for host and device: from the control records of all ranks to one
// decision and to the tables of a route. Every rank computes the same from the same records.
#pragma once

#include <cstdint>

#include "core/kernels.h"
#include "core/routing.h"

namespace sluice::core {

// What publish writes at `rank`: the record of this operation, and so many of args.sent behind it.
SLUICE_HD inline ControlRecord& record_at(const PublishArgs& args, int rank) {
  return *reinterpret_cast<ControlRecord*>(args.addresses->base[rank] +
                                           args.page.record_offset(args.channel, args.topology->rank));
}
SLUICE_HD inline std::int32_t counts_to_send(const PublishArgs& args) {
  return args.sent ? args.topology->ranks + (args.expert_counts ? args.topology->experts : 0) : 0;
}

// Of a copy of args.record, what only a kernel knows. A refusal by the caller stands above what this rank's
// kernels have found since.
SLUICE_HD inline void complete_record(const PublishArgs& args, std::int64_t operation, std::int64_t now_ns, ControlRecord& record) {
  record.digest[Field::operation] = operation;
  record.sent_at_ns = now_ns;
  if (record.refusal != Refusal::none) return;
  if (args.checked && args.report->fault.problem != IdProblem::none) {
    record.refusal = Refusal::id;
    record.fault = args.report->fault;
  } else if (args.made && *args.made != Outcome::go) {
    record.refusal = Refusal::route;
  }
}

// The records of one channel in this rank's own page.
struct Records {
  const std::byte* page = nullptr;
  PageLayout layout;
  std::int32_t channel = 0;

  SLUICE_HD const ControlRecord& of(int source) const {
    return *reinterpret_cast<const ControlRecord*>(page + layout.record_offset(channel, source));
  }
  SLUICE_HD std::int64_t rows(int source, int rank) const { return counts_per_rank(&of(source))[rank]; }
  SLUICE_HD std::int64_t expert_rows(int source, int expert) const {
    return counts_per_rank(&of(source))[layout.ranks + expert];
  }
};

// Whether a record of `source` names its own window, or nothing. Peers of the same user write it: a broken one must
// not take this rank along (promise F6).
SLUICE_HD inline bool names_own_window(const ControlRecord& record, int source, std::int64_t window_bytes) {
  for (const Place* place : {&record.rows, &record.scales, &record.ids, &record.weights, &record.values}) {
    if (place->rank == -1) continue;
    if (place->rank != source || place->offset > static_cast<std::uint64_t>(window_bytes)) return false;
  }
  return true;
}

// The lowest rank that refused, else the lowest that differs from rank 0; else `go`.
SLUICE_HD inline void compare_records(const Records& records, int ranks, std::int64_t window_bytes, Verdict& verdict) {
  verdict.outcome = Outcome::go;
  SLUICE_ROLLED
  for (int r = 0; r < ranks; ++r) {
    const ControlRecord& record = records.of(r);
    const bool sound = names_own_window(record, r, window_bytes);
    if (record.refusal == Refusal::none && sound) continue;
    verdict.outcome = Outcome::refused;
    verdict.rank = r;
    verdict.refusal = sound ? record.refusal : Refusal::record;
    verdict.fault = record.fault;
    SLUICE_ROLLED
    for (int i = 0; i + 1 < reason_bytes; ++i) verdict.reason[i] = record.reason[i];
    return;
  }
  const Digest& first = records.of(0).digest;
  SLUICE_ROLLED
  for (int r = 1; r < ranks; ++r) {
    const Digest& digest = records.of(r).digest;
    SLUICE_ROLLED
    for (int f = 0; f < field_count; ++f) {
      if (digest.value[f] == first.value[f]) continue;
      verdict.outcome = Outcome::differs;
      verdict.rank = r;
      verdict.other = 0;
      verdict.field = static_cast<Field>(f);
      verdict.value = digest.value[f];
      verdict.other_value = first.value[f];
      return;
    }
  }
}

// C -> positions: where the rows of every rank start at every rank and expert. First what each rank and each
// expert gets, independent of one another, then where the experts start.
SLUICE_HD inline void fill_rank(const Records& records, const Topology& topology, const RouteTables& route, int r) {
  std::int64_t before = 0, total = 0;
  SLUICE_ROLLED
  for (int s = 0; s < route.ranks; ++s) {
    if (s < topology.rank) before += records.rows(s, r);
    total += records.rows(s, r);
  }
  route.packed_base[r] = before;
  route.packed_total[r] = total;
  route.limit[r] = records.of(r).capacity;
}

// expert_base is relative to the expert's start until that is known.
SLUICE_HD inline void fill_expert(const Records& records, const Topology& topology, const RouteTables& route, int e) {
  std::int64_t before = 0, total = 0;
  SLUICE_ROLLED
  for (int s = 0; s < route.ranks; ++s) {
    const std::int64_t rows = records.expert_rows(s, e);
    if (s < topology.rank) before += rows;
    total += rows;
  }
  route.expert_base[e] = before;
  route.expert_total[e] = total;
}

SLUICE_HD inline void start_expert(const RouteTables& route, int e, std::int64_t start) {
  route.expert_start[e] = start;
  route.expert_base[e] += start;
}

SLUICE_HD inline std::int64_t padded_start(const RouteTables& route, const Topology& topology, int r, int e) {
  return (e - topology.first_expert[r]) * route.limit[r];
}

SLUICE_HD inline void fill_route(const Records& records, const Topology& topology, const RouteTables& route) {
  route.source_start[0] = 0;
  for (int s = 0; s < route.ranks; ++s) {
    route.source_start[s + 1] = route.source_start[s] + records.rows(s, topology.rank);
  }
  for (int r = 0; r < route.ranks; ++r) {
    fill_rank(records, topology, route, r);
    if (route.topk == 0) continue;
    std::int64_t start = 0;
    for (int e = topology.first_expert[r]; e < topology.first_expert[r + 1]; ++e) {
      fill_expert(records, topology, route, e);
      start_expert(route, e, route.layout == Layout::padded ? padded_start(route, topology, r, e) : start);
      start += align_up(route.expert_total[e], route.alignment);
    }
  }
}

// The lowest rank whose capacity is less than it needs.
SLUICE_HD inline void check_room(const Records& records, const Topology& topology, const RouteTables& route,
                                 bool makes_route, Verdict& verdict) {
  SLUICE_ROLLED
  for (int r = 0; r < route.ranks; ++r) {
    std::int64_t expert = -1;
    std::int64_t need = rows_needed(route, topology, r, &expert);
    if (!makes_route) need = rows_kept(route, topology, r);
    const std::int64_t capacity = records.of(r).capacity;
    if (need <= capacity) continue;
    verdict.outcome = Outcome::no_room;
    verdict.rank = r;
    verdict.need = need;
    verdict.capacity = capacity;
    verdict.expert = expert;
    return;
  }
}

SLUICE_HD inline void fill_placement(const Records& records, int me, const Placement& placement, int r) {
  const std::int64_t ready = records.of(me).sent_at_ns;
  const ControlRecord& record = records.of(r);
  placement.rows[r] = record.rows;
  placement.scales[r] = record.scales;
  placement.ids[r] = record.ids;
  placement.weights[r] = record.weights;
  placement.values[r] = record.values;
  placement.row_stride[r] = record.row_stride;
  placement.scale_stride[r] = record.scale_stride;
  placement.lateness_ns[r] = record.sent_at_ns > ready ? record.sent_at_ns - ready : 0;
}

// Of a local expert: packed as chosen, before a drop.
SLUICE_HD inline std::int64_t rows_to_report(const RouteTables& route, int me, int e) {
  return route.layout == Layout::packed ? route.expert_total[e] : kept_rows(route, me, e);
}

// What the host wants to know of a dispatch: counts here, and what was dropped.
SLUICE_HD inline void fill_report(const RouteTables& route, const Topology& topology, Report& report) {
  const int me = topology.rank;
  report.packed_rows = packed_rows_here(route, me);
  report.dropped = route.layout == Layout::packed ? route.packed_total[me] - report.packed_rows : 0;
  std::int64_t kept_in_all = 0;
  for (int s = 0; s < route.ranks; ++s) report.per_source[s] = route.source_start[s + 1] - route.source_start[s];
  for (int e = topology.first_expert[me]; route.topk > 0 && e < topology.first_expert[me + 1]; ++e) {
    const std::int64_t kept = rows_to_report(route, me, e);
    report.per_expert[e - topology.first_expert[me]] = kept;
    report.dropped += route.expert_total[e] - kept;
    kept_in_all += kept;
  }
  report.rows = route.layout == Layout::padded ? kept_in_all : rows_kept(route, topology, me);
}

// All of agree, by one thread. `args.report` gets the verdict last.
SLUICE_HD inline void agree(const AgreeArgs& args) {
  const Topology& topology = *args.topology;
  const Records records{args.addresses->base[topology.rank], args.page, args.channel};
  const RouteTables& route = args.route;
  Verdict verdict;
  compare_records(records, topology.ranks, args.window_bytes, verdict);
  if (verdict.outcome == Outcome::go) {
    if (args.makes_route) fill_route(records, topology, route);
    if (!(args.makes_route && args.drop)) check_room(records, topology, route, args.makes_route, verdict);
  }
  if (verdict.outcome == Outcome::go) {
    for (int r = 0; r < topology.ranks; ++r) fill_placement(records, topology.rank, args.placement, r);
    if (args.kind == OperationKind::dispatch) fill_report(route, topology, *args.report);
  }
  if (args.makes_route) *route.outcome = verdict.outcome;
  args.report->verdict = verdict;
}

}  // namespace sluice::core
