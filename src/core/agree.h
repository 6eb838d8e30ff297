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

// A refusal by the caller stands above what this rank's kernels have found since.
SLUICE_HD inline ControlRecord record_to_send(const PublishArgs& args, std::int64_t operation, std::int64_t now_ns) {
  ControlRecord record = args.record;
  record.digest[Field::operation] = operation;
  record.sent_at_ns = now_ns;
  if (record.refusal != Refusal::none) return record;
  if (args.report->fault.problem != IdProblem::none) {
    record.refusal = Refusal::id;
    record.fault = args.report->fault;
  } else if (args.made_by && args.made_by->verdict.outcome != Outcome::go) {
    record.refusal = Refusal::route;
  }
  return record;
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

// The lowest rank that refused, else the lowest that differs from rank 0; else `go`.
SLUICE_HD inline Verdict compare_records(const Records& records, int ranks) {
  Verdict verdict;
  verdict.outcome = Outcome::go;
  for (int r = 0; r < ranks; ++r) {
    const ControlRecord& record = records.of(r);
    if (record.refusal == Refusal::none) continue;
    verdict.outcome = Outcome::refused;
    verdict.rank = r;
    verdict.refusal = record.refusal;
    verdict.fault = record.fault;
    for (int i = 0; i + 1 < reason_bytes; ++i) verdict.reason[i] = record.reason[i];
    return verdict;
  }
  const Digest& first = records.of(0).digest;
  for (int r = 1; r < ranks; ++r) {
    const Digest& digest = records.of(r).digest;
    for (int f = 0; f < field_count; ++f) {
      if (digest.value[f] == first.value[f]) continue;
      verdict.outcome = Outcome::differs;
      verdict.rank = r;
      verdict.other = 0;
      verdict.field = static_cast<Field>(f);
      verdict.value = digest.value[f];
      verdict.other_value = first.value[f];
      return verdict;
    }
  }
  return verdict;
}

// C -> positions: where the rows of every rank start at every rank and expert.
SLUICE_HD inline void fill_route(const Records& records, const Topology& topology, RouteTables& route) {
  const int me = topology.rank;
  route.source_start[0] = 0;
  for (int s = 0; s < route.ranks; ++s) route.source_start[s + 1] = route.source_start[s] + records.rows(s, me);
  for (int r = 0; r < route.ranks; ++r) {
    std::int64_t before = 0, total = 0;
    for (int s = 0; s < route.ranks; ++s) {
      if (s < me) before += records.rows(s, r);
      total += records.rows(s, r);
    }
    route.packed_base[r] = before;
    route.packed_total[r] = total;
    route.limit[r] = records.of(r).capacity;
    if (route.topk == 0) continue;
    std::int64_t start = 0;
    for (int e = topology.first_expert[r]; e < topology.first_expert[r + 1]; ++e) {
      std::int64_t mine = 0, all = 0;
      for (int s = 0; s < route.ranks; ++s) {
        if (s < me) mine += records.expert_rows(s, e);
        all += records.expert_rows(s, e);
      }
      if (route.layout == Layout::padded) start = (e - topology.first_expert[r]) * route.limit[r];
      route.expert_start[e] = start;
      route.expert_base[e] = start + mine;
      route.expert_total[e] = all;
      start += align_up(all, route.alignment);
    }
  }
}

// The lowest rank whose capacity is less than it needs.
SLUICE_HD inline void check_room(const Records& records, const Topology& topology, const RouteTables& route,
                                 bool makes_route, Verdict& verdict) {
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

SLUICE_HD inline void fill_placement(const Records& records, int ranks, int me, Placement& placement) {
  const std::int64_t ready = records.of(me).sent_at_ns;
  for (int r = 0; r < ranks; ++r) {
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
}

// What the host wants to know of a dispatch: counts here, and what was dropped.
SLUICE_HD inline void fill_report(const RouteTables& route, const Topology& topology, Report& report) {
  const int me = topology.rank;
  report.packed_rows = packed_rows_here(route, me);
  report.dropped = route.layout == Layout::packed ? route.packed_total[me] - report.packed_rows : 0;
  std::int64_t kept_in_all = 0;
  for (int s = 0; s < route.ranks; ++s) report.per_source[s] = route.source_start[s + 1] - route.source_start[s];
  for (int e = topology.first_expert[me]; route.topk > 0 && e < topology.first_expert[me + 1]; ++e) {
    const bool whole = route.layout == Layout::packed;
    const std::int64_t kept = whole ? route.expert_total[e] : kept_rows(route, me, e);
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
  RouteTables route = args.route;
  Placement placement = args.placement;
  Verdict verdict = compare_records(records, topology.ranks);
  if (verdict.outcome == Outcome::go) {
    if (args.makes_route) fill_route(records, topology, route);
    if (!(args.makes_route && args.drop)) check_room(records, topology, route, args.makes_route, verdict);
  }
  if (verdict.outcome == Outcome::go) {
    fill_placement(records, topology.ranks, topology.rank, placement);
    if (args.kind == OperationKind::dispatch) fill_report(route, topology, *args.report);
  }
  args.report->verdict = verdict;
}

}  // namespace sluice::core
