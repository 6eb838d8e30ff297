#include "doctor/fixture.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace sluice::doctor::testing {
namespace {

using nlohmann::json;
using Times = std::vector<std::int64_t>;

// 0 stays 0: not reached.
std::int64_t after(std::int64_t time, std::int64_t base) { return time == 0 ? 0 : time - base; }
std::int64_t at(std::int64_t offset, std::int64_t base) { return offset == 0 ? 0 : offset + base; }

Times shifted(Times times, std::int64_t base, std::int64_t (*shift)(std::int64_t, std::int64_t)) {
  for (std::int64_t& time : times) time = shift(time, base);
  return times;
}

json line_of(const OperationTrace& op, std::int64_t made_ns) {
  const std::int64_t call = op.called_ns;
  return json::array({op.combine ? 1 : 0, op.channel, op.operation, static_cast<int>(op.outcome), op.tokens, op.rows, op.row_bytes,
                      op.num_sms, call - made_ns, op.thread_cpu_ns, op.process_cpu_ns, after(op.begun_ns, call),
                      after(op.ready_ns, call), after(op.data_ns, call), after(op.move_begin_ns, call), after(op.move_end_ns, call),
                      after(op.end_ns, call), shifted(op.arrived_ns, call, after), shifted(op.closed_ns, call, after), op.rows_with});
}

OperationTrace operation_of(const json& line, std::int64_t made_ns) {
  OperationTrace op;
  const auto number = [&](std::size_t i) { return line.at(i).get<std::int64_t>(); };
  op.combine = number(0) != 0;
  op.channel = static_cast<int>(number(1));
  op.operation = number(2);
  op.outcome = static_cast<OperationTrace::Outcome>(number(3));
  op.tokens = number(4);
  op.rows = number(5);
  op.row_bytes = number(6);
  op.num_sms = static_cast<int>(number(7));
  const std::int64_t call = op.called_ns = number(8) + made_ns;
  op.thread_cpu_ns = number(9);
  op.process_cpu_ns = number(10);
  op.begun_ns = at(number(11), call);
  op.ready_ns = at(number(12), call);
  op.data_ns = at(number(13), call);
  op.move_begin_ns = at(number(14), call);
  op.move_end_ns = at(number(15), call);
  op.end_ns = at(number(16), call);
  op.arrived_ns = shifted(line.at(17).get<Times>(), call, at);
  op.closed_ns = shifted(line.at(18).get<Times>(), call, at);
  op.rows_with = line.at(19).get<Times>();
  return op;
}

json head_of(const RankTrace& trace) {
  json copies = json::array();
  for (const CopyTrace& copy : trace.copies)
    copies.push_back({copy.begun_ns - trace.made_ns, copy.end_ns - copy.begun_ns, copy.bytes, copy.to_host ? 1 : 0});
  return {{"rank", trace.rank}, {"ranks", trace.ranks}, {"channels", trace.channels}, {"process", trace.process},
          {"made_ns", trace.made_ns}, {"clock_error_ns", trace.clock_error_ns}, {"lost", trace.lost}, {"engine", trace.engine},
          {"operations", trace.operations.size()}, {"copies", copies}};
}

RankTrace trace_of(const json& head) {
  RankTrace trace;
  trace.communicator = "recorded";
  trace.host = "recorded";
  trace.boot_id = "recorded";
  trace.engine = head.at("engine");
  trace.process = head.at("process");
  trace.rank = head.at("rank");
  trace.ranks = head.at("ranks");
  trace.channels = head.at("channels");
  trace.made_ns = head.at("made_ns");
  trace.clock_error_ns = head.at("clock_error_ns");
  trace.lost = head.at("lost");
  for (const json& copy : head.at("copies")) {
    const std::int64_t begun = copy.at(0).get<std::int64_t>() + trace.made_ns;
    trace.copies.push_back({begun, begun + copy.at(1).get<std::int64_t>(), copy.at(2), copy.at(3).get<int>() != 0});
  }
  return trace;
}

}  // namespace

void write_fixture(const std::string& path, const Fixture& fixture) {
  std::ofstream file(path);
  file << json{{"class", fixture.verdict}, {"rank", fixture.rank}, {"cause", fixture.cause}} << "\n";
  for (const RankTrace& trace : fixture.traces) {
    file << head_of(trace) << "\n";
    for (const OperationTrace& op : trace.operations) file << line_of(op, trace.made_ns) << "\n";
  }
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

Fixture read_fixture(const std::string& path) {
  std::ifstream file(path);
  const auto next = [&] {
    std::string line;
    if (!std::getline(file, line)) throw std::runtime_error("cannot read " + path);
    return json::parse(line);
  };
  const json title = next();
  Fixture fixture{std::filesystem::path(path).stem().string(), title.at("class"), title.at("rank"), title.at("cause"), {}};
  while (file.peek() != std::ifstream::traits_type::eof()) {
    const json head = next();
    fixture.traces.push_back(trace_of(head));
    RankTrace& trace = fixture.traces.back();
    for (std::size_t i = head.at("operations"); i > 0; --i) trace.operations.push_back(operation_of(next(), trace.made_ns));
  }
  return fixture;
}

}  // namespace sluice::doctor::testing
