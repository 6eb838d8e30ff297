// `sluice trace merge`: what it draws, of real runs and of traces whose times are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cli/program.h"
#include "cli/trace_file.h"

namespace sluice::cli::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using nlohmann::json;

std::int64_t ns_of(const json& us) { return std::llround(us.get<double>() * 1000); }

struct Slice {
  std::int64_t begin = 0, end = 0;
  std::string name, category;
  json event;
};

// What a viewer makes of the events.
struct Drawing {
  std::map<std::int64_t, std::string> processes;
  std::map<std::int64_t, std::string> threads;
  std::map<std::int64_t, std::vector<Slice>> slices;  // by thread, the outer before the inner
  std::map<std::int64_t, std::vector<json>> arrows;   // by id, in the order of the file

  explicit Drawing(const std::string& text) {
    const json trace = json::parse(text);
    for (const json& event : trace.at("traceEvents")) {
      const std::string phase = event.at("ph");
      const std::int64_t thread = event.at("tid");
      EXPECT_EQ(thread / 1000, event.at("pid").get<std::int64_t>());
      if (phase == "X") add_slice(thread, event);
      if (phase == "s" || phase == "f") arrows[event.at("id")].push_back(event);
      if (phase == "M" && event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
      if (phase == "M" && event["name"] == "thread_name") threads[thread] = event["args"]["name"];
    }
  }

  void add_slice(std::int64_t thread, const json& event) {
    const std::int64_t begin = ns_of(event.at("ts")), length = ns_of(event.at("dur"));
    // A reader that cuts instead of rounding sees the same.
    EXPECT_EQ(static_cast<std::int64_t>(event["ts"].get<double>() * 1000), begin);
    EXPECT_EQ(static_cast<std::int64_t>(event["dur"].get<double>() * 1000), length);
    EXPECT_GE(begin, 0);
    EXPECT_GT(length, 0);
    slices[thread].push_back({begin, begin + length, event.at("name"), event.at("cat"), event});
  }

  std::vector<Slice> of_category(const std::string& category) const {
    std::vector<Slice> found;
    for (const auto& [thread, all] : slices) {
      for (const Slice& slice : all) {
        if (slice.category == category) found.push_back(slice);
      }
    }
    return found;
  }

  bool is_within(const json& arrow_end, const char* category) const {
    const auto all = slices.find(arrow_end.at("tid"));
    const std::int64_t at = ns_of(arrow_end.at("ts"));
    return all != slices.end() && std::any_of(all->second.begin(), all->second.end(), [&](const Slice& slice) {
             return slice.category == category && slice.begin <= at && at < slice.end;
           });
  }
};

// Slices of a thread follow one another or lie within one another, and those in an operation fill it.
void expect_nested(const std::vector<Slice>& slices) {
  std::int64_t operation_end = 0, filled = 0;
  for (const Slice& slice : slices) {
    if (slice.category == "operation") {
      EXPECT_GE(slice.begin, operation_end);
      EXPECT_EQ(filled, operation_end);
      operation_end = slice.end;
      filled = slice.event["args"].contains("attribution_us") ? slice.begin : slice.end;
      continue;
    }
    EXPECT_EQ(slice.begin, filled) << slice.event;
    EXPECT_LE(slice.end, operation_end) << slice.event;
    filled = slice.end;
  }
  EXPECT_EQ(filled, operation_end);
}

// A part that has no slice is 0.
void expect_parts_as_slices(const std::vector<Slice>& slices) {
  std::map<std::string, std::int64_t> left;
  for (const Slice& slice : slices) {
    if (slice.category != "operation") {
      EXPECT_EQ(left[slice.category], slice.end - slice.begin) << slice.event;
      left.erase(slice.category);
      continue;
    }
    for (const auto& [part, ns] : left) EXPECT_EQ(ns, 0) << part;
    left.clear();
    std::int64_t sum = 0, blamed = 0;
    for (const auto& [part, us] : slice.event["args"]["attribution_us"].items()) {
      if (part != "total") sum += left[part] = ns_of(us);
    }
    EXPECT_EQ(sum, slice.end - slice.begin);
    EXPECT_EQ(sum, ns_of(slice.event["args"]["attribution_us"]["total"]));
    for (const auto& [rank, us] : slice.event["args"]["waited_for_us"].items()) blamed += ns_of(us);
    EXPECT_EQ(blamed, left["wait"]);
  }
}

void expect_arrows_on_slices(const Drawing& drawing) {
  for (const auto& [id, ends] : drawing.arrows) {
    ASSERT_EQ(ends.size(), 2u) << id;
    EXPECT_EQ(ends[0]["ph"], "s");
    EXPECT_EQ(ends[1]["ph"], "f");
    EXPECT_EQ(ends[1]["bp"], "e");
    for (const char* same : {"cat", "name", "id"}) EXPECT_EQ(ends[0][same], ends[1][same]);
    EXPECT_NE(ends[0]["pid"], ends[1]["pid"]);
    EXPECT_LE(ns_of(ends[0]["ts"]), ns_of(ends[1]["ts"]));
    EXPECT_TRUE(drawing.is_within(ends[0], "operation")) << ends[0];
    EXPECT_TRUE(drawing.is_within(ends[1], "wait")) << ends[1];
  }
}

std::string merged(const std::string& folder) {
  const Ran ran = run_program({"trace", "merge", folder, "-o", "-"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  return ran.out;
}

TEST(trace_merge, a_real_run_becomes_slices_that_nest_and_add_up) {
  for (const char* launch : {"threads", "processes"}) {
    const TemporaryFolder folder;
    const std::string traces = folder.file("traces");
    ASSERT_EQ(run_program({"bench", "--ranks", "3", "--launch", launch, "--tokens", "64", "--hidden", "256", "--iters", "5"},
                          {.environment = {{"SLUICE_TRACE", traces}}}).code, 0);
    const Ran ran = run_program({"trace", "merge", traces, "-o", folder.file("trace.json"), "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.err, "");
    const auto lines = ran.lines();
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0]["communicators"], 2);  // bench makes one for each operation
    EXPECT_EQ(lines[0]["ranks"], 6);
    EXPECT_EQ(lines[0]["unfinished"], 0);
    const Drawing drawing(read_file(folder.file("trace.json")));
    EXPECT_EQ(drawing.processes.size(), 6u);
    EXPECT_EQ(drawing.processes.at(1), "rank 0 of communicator 1");
    EXPECT_EQ(drawing.processes.at(6), "rank 2 of communicator 2");
    EXPECT_EQ(drawing.threads.at(1001), "channel 0");
    // 1 to check, 3 to warm up, 5 measured; for combine there is a dispatch before.
    const auto operations = drawing.of_category("operation");
    EXPECT_EQ(operations.size(), 3u * (9 + 10));
    EXPECT_EQ(lines[0]["operations"], operations.size());
    EXPECT_EQ(lines[0]["arrows"], drawing.arrows.size());
    EXPECT_GT(drawing.arrows.size(), 0u);
    EXPECT_EQ(operations.front().event["args"]["tokens"], 64);
    EXPECT_EQ(operations.front().event["args"]["row_bytes"], 512);
    for (const auto& [thread, slices] : drawing.slices) {
      expect_nested(slices);
      expect_parts_as_slices(slices);
    }
    expect_arrows_on_slices(drawing);
  }
}

// Rank 1 sends its OPEN 5 us after rank 0.
TEST(trace_merge, the_wait_for_a_late_rank_is_drawn_apart_with_an_arrow_from_it) {
  const TemporaryFolder folder;
  TraceText early(0), late(1);
  early.add({.called = 1'000'500, .begun = 1'001'000, .ready = 1'002'001, .move_begin = 1'007'500, .move_end = 1'009'000, .end = 1'010'000,
             .arrived = {1'002'001, 1'007'001}, .closed = {1'009'000, 1'009'800}});
  late.add({.called = 1'006'000, .begun = 1'006'100, .ready = 1'007'001, .move_begin = 1'007'300, .move_end = 1'009'800, .end = 1'010'100,
            .arrived = {1'002'001, 1'007'001}, .closed = {1'009'000, 1'009'800}});
  write_file(folder.file("a.trace"), early.text());
  write_file(folder.file("b.trace"), late.text());
  write_file(folder.file("notes.txt"), "not a trace");
  const Drawing drawing(merged(folder.file("")));
  EXPECT_THAT(drawing.processes, ElementsAre(std::pair(1, "rank 0"), std::pair(2, "rank 1")));
  std::vector<std::string> names;
  for (const Slice& slice : drawing.slices.at(1001)) names.push_back(slice.name);
  EXPECT_THAT(names, ElementsAre("dispatch", "before", "wait for rank 1", "scheduling", "move", "closing", "after"));
  const auto waits = drawing.of_category("wait"), moves = drawing.of_category("move");
  ASSERT_EQ(waits.size(), 1u);
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(waits[0].begin, 1'501);  // from the earliest call
  EXPECT_EQ(waits[0].end, 6'501);
  EXPECT_NE(waits[0].event["cname"], moves[0].event["cname"]);
  const json& args = drawing.slices.at(1001).front().event["args"];
  EXPECT_EQ(args["operation"], 1);
  EXPECT_EQ(args["rows"], 7);
  EXPECT_EQ(args["bytes"], 7 * 64);
  EXPECT_EQ(ns_of(args["queued_us"]), 500);
  EXPECT_EQ(ns_of(args["waited_for_us"]["rank 1"]), 5'000);
  ASSERT_EQ(drawing.arrows.size(), 1u);
  expect_arrows_on_slices(drawing);
  const auto& arrow = drawing.arrows.begin()->second;
  EXPECT_EQ(arrow[0]["pid"], 2);
  EXPECT_EQ(arrow[1]["pid"], 1);
  EXPECT_NEAR(static_cast<double>(ns_of(arrow[0]["ts"])), 6'501, 2);
}

TEST(trace_merge, an_operation_that_a_crash_cut_off_is_marked_unfinished) {
  const TemporaryFolder folder;
  TraceText survivor(0), dead(1);
  survivor.add({.called = 1000, .begun = 2000, .ready = 3000, .move_begin = 4000, .move_end = 5000, .end = 9000,
                .arrived = {3000, 2500}, .closed = {5000, 6000}});
  dead.add({.called = 1500, .begun = 2200, .ready = 2500, .move_begin = 3200, .arrived = {3000, 2500}, .closed = {0, 0}});
  write_file(folder.file("a.trace"), survivor.text());
  write_file(folder.file("b.trace"), dead.text());
  const Drawing drawing(merged(folder.file("")));
  const auto& slices = drawing.slices.at(2001);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].name, "dispatch (unfinished)");
  EXPECT_EQ(slices[0].event["args"]["unfinished"], true);
  EXPECT_EQ(slices[0].event["args"]["reached"], "move begun");
  EXPECT_EQ(slices[0].begin, 1200);
  EXPECT_EQ(slices[0].end, 8000);  // the last that was heard of any rank
}

TEST(trace_merge, host_copies_have_rows_of_their_own_and_those_that_overlap_lie_apart) {
  const TemporaryFolder folder;
  TraceText rank(0, 1);
  rank.add_copy(1000, 5000, 8000, true);
  rank.add_copy(2000, 3000, 10, false);
  rank.add_copy(5000, 6000, 10, true);
  write_file(folder.file("a.trace"), rank.text());
  const Drawing drawing(merged(folder.file("")));
  EXPECT_EQ(drawing.threads.at(1500), "host copies");
  EXPECT_EQ(drawing.threads.at(1501), "host copies 2");
  ASSERT_EQ(drawing.slices.at(1500).size(), 2u);
  ASSERT_EQ(drawing.slices.at(1501).size(), 1u);
  const Slice& first = drawing.slices.at(1500).front();
  EXPECT_EQ(first.name, "copy to host");
  EXPECT_EQ(first.begin, 0);
  EXPECT_EQ(first.event["args"]["bytes"], 8000);
  EXPECT_DOUBLE_EQ(first.event["args"]["gb_per_s"].get<double>(), 2.0);
  EXPECT_EQ(drawing.slices.at(1501).front().name, "copy to device");
}

TEST(trace_merge, ranks_that_left_no_file_and_communicators_that_were_not_made_are_told) {
  const TemporaryFolder folder;
  TraceText alone(1, 3), nameless(0, 2, "");
  alone.add({.number = 12, .called = 1000, .begun = 1000, .ready = 1100, .move_begin = 1300, .move_end = 1400, .end = 1500,
             .arrived = {1100, 1100, 1200}, .closed = {1400, 1400, 1400}});
  write_file(folder.file("a.trace"), alone.text());
  write_file(folder.file("b.trace"), nameless.text());
  const Ran ran = run_program({"trace", "merge", folder.file(""), "-o", folder.file("out.json")});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("1 files are of communicators that were never made"));
  EXPECT_THAT(ran.err, HasSubstr("11 operations are not there"));
  EXPECT_THAT(ran.err, HasSubstr("of the 3 ranks of communicator c1 only 1 have a file"));
  EXPECT_THAT(ran.out, HasSubstr("1 ranks of 1 communicators, 1 operations (0 unfinished)"));
  const Drawing drawing(read_file(folder.file("out.json")));
  EXPECT_EQ(drawing.of_category("wait").size(), 1u);
  EXPECT_TRUE(drawing.arrows.empty());  // there is nothing to begin at
}

// One sentence on standard error, and the exit code.
void expect_refused(const std::string& folder, int code, const std::string& sentence) {
  const Ran ran = run_program({"trace", "merge", folder, "-o", "-"});
  EXPECT_EQ(ran.code, code) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr(sentence));
}

TEST(trace_merge, refuses_what_cannot_be_merged_with_a_sentence) {
  const TemporaryFolder folder;
  const std::string traces = folder.file("");
  expect_refused(folder.file("none"), 1, "cannot be read: No such file or directory");
  expect_refused(traces, 1, "holds no file NAME.trace; run what is to be traced with SLUICE_TRACE=");
  write_file(folder.file("a.trace"), TraceText(0).text());
  expect_refused(folder.file("a.trace"), 1, "is not a folder");
  write_file(folder.file("b.trace"), TraceText(1, 2, "c1", "b2").text());
  expect_refused(traces, 1, "their clocks cannot be compared");
  write_file(folder.file("b.trace"), TraceText(0).text());
  expect_refused(traces, 1, "are both of rank 0 of communicator c1");
  write_file(folder.file("b.trace"), TraceText(1, 3).text());
  expect_refused(traces, 1, "one of them is broken");
  write_file(folder.file("b.trace"), TraceText(1).text().substr(0, 5000));
  expect_refused(traces, 1, "b.trace\" is not a trace of Sluice: it is shorter than its header says");
  write_file(folder.file("b.trace"), "");
  expect_refused(traces, 1, "b.trace\" is not a trace of Sluice");
}

TEST(trace_merge, an_output_that_cannot_be_written_is_1) {
  const TemporaryFolder folder;
  write_file(folder.file("a.trace"), TraceText(0, 1).text());
  for (const char* path : {"/no/such/folder/x", "/dev/full"}) {
    const Ran ran = run_program({"trace", "merge", folder.file(""), "-o", path, "--json"});
    EXPECT_EQ(ran.code, 1) << path;
    const auto lines = ran.lines();
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0]["kind"], "FileError");
    EXPECT_THAT(lines[0]["message"].get<std::string>(), HasSubstr("cannot be written"));
  }
}

}  // namespace
}  // namespace sluice::cli::testing
