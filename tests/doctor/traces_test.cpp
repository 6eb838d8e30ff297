#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <sluice/errors.h>

#include "doctor/html.h"
#include "doctor/synthetic.h"
#include "doctor/text.h"

namespace sluice::doctor::testing {
namespace {

using ::testing::HasSubstr;

std::vector<RankTrace> late_rank_2() {
  return tell(4, 40, [](int rank, int) { return Step{.late = rank == 2 ? 2000.0 : 0}; });
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(traces, a_folder_that_is_not_there_or_empty_is_refused) {
  EXPECT_THAT(refusal([] { load_traces("/no/such/folder"); }), HasSubstr("\"/no/such/folder\" is no folder"));
  std::string folder = (std::filesystem::temp_directory_path() / "doctor-XXXXXX").string();
  ASSERT_TRUE(mkdtemp(folder.data()));
  EXPECT_THAT(refusal([&] { load_traces(folder); }), HasSubstr("holds no trace; run the program with SLUICE_TRACE="));
  std::ofstream(folder + "/x.trace") << "nonsense";
  EXPECT_THAT(refusal([&] { load_traces(folder); }), HasSubstr("is not a trace of Sluice"));
  std::filesystem::remove_all(folder);
}

TEST(traces, what_is_no_file_is_left_out) {
  std::string folder = (std::filesystem::temp_directory_path() / "doctor-XXXXXX").string();
  ASSERT_TRUE(mkdtemp(folder.data()));
  std::filesystem::create_directory(folder + "/folder.trace");
  ASSERT_EQ(mkfifo((folder + "/pipe.trace").c_str(), 0600), 0);
  EXPECT_THAT(refusal([&] { load_traces(folder); }), HasSubstr("folder.trace\" is not a trace of Sluice: it is no ordinary file"));
  std::filesystem::remove_all(folder);
}

TEST(traces, of_communicators_that_were_never_made_are_left_out) {
  auto all = late_rank_2();
  all.push_back({});
  EXPECT_THAT(choose_traces(all, "", "here").others, ::testing::IsEmpty());
  EXPECT_THAT(refusal([&] { choose_traces({RankTrace{}}, "", "here"); }), HasSubstr("only traces of communicators that were never made"));
}

TEST(traces, of_two_boots_are_refused) {
  auto traces = late_rank_2();
  traces[3].boot_id = "another";
  EXPECT_THAT(refusal([&] { judge(traces); }), HasSubstr("clocks cannot be compared"));
}

TEST(traces, two_of_one_rank_are_refused) {
  auto traces = late_rank_2();
  traces.push_back(traces[1]);
  EXPECT_THAT(refusal([&] { judge(traces); }), HasSubstr("rank 1 of communicator c has two traces"));
}

TEST(traces, the_communicator_with_the_most_time_is_chosen_or_the_named_one) {
  auto all = late_rank_2();
  for (RankTrace trace : tell(2, 4, [](int, int) { return Step{}; })) {
    trace.communicator = "small";
    all.push_back(trace);
  }
  EXPECT_EQ(choose_traces(all, "", "here").communicator, "c");
  EXPECT_THAT(choose_traces(all, "", "here").others, ::testing::ElementsAre("small"));
  EXPECT_EQ(choose_traces(all, "small", "here").ranks, 2);
  EXPECT_THAT(refusal([&] { choose_traces(all, "none", "here"); }), HasSubstr("holds no trace of a communicator none; it holds c, small"));
}

TEST(traces, what_is_missing_is_said_and_the_rest_judged) {
  auto traces = late_rank_2();
  traces.erase(traces.begin());
  Diagnosis found = judge(traces);
  EXPECT_EQ(found.verdict, Class::host_late);
  EXPECT_EQ(found.rank, 2);
  EXPECT_THAT(text_of(found), HasSubstr("the trace of rank 0 is missing"));
  traces = late_rank_2();
  traces.erase(traces.begin() + 2);  // the culprit's own
  found = judge(traces);
  EXPECT_EQ(found.rank, 2);
  EXPECT_THAT(headline(found), HasSubstr("not known, since its trace is missing"));
}

TEST(traces, nothing_that_ended_is_nothing_to_judge) {
  EXPECT_THAT(refusal([] { judge(tell(2, 1, [](int, int) { return Step{}; })); }), HasSubstr("nothing to judge"));
}

TEST(standing, a_hang_is_told_rank_by_rank) {
  auto traces = late_rank_2();
  for (RankTrace& rank : traces) {
    if (rank.rank == 2) continue;
    OperationTrace op = rank.operations.back();
    op.operation = 41;
    op.outcome = OperationTrace::Outcome::running;
    op.ready_ns = op.move_begin_ns = op.move_end_ns = op.end_ns = 0;
    rank.operations.push_back(op);
  }
  EXPECT_THAT(text_of(judge(traces)), HasSubstr("operation 41 of channel 0 has not ended: rank 2 has not called it; ranks 0, 1, 3 wait for all to enter"));
  for (RankTrace& rank : traces) {
    if (rank.rank != 2) rank.operations.back().ready_ns = rank.operations.back().begun_ns + 5;
    if (rank.rank == 0) rank.operations.back().move_end_ns = rank.operations.back().begun_ns + 9;
  }
  EXPECT_THAT(text_of(judge(traces)), HasSubstr("ranks 1, 3 are in the move of rows; rank 0 has moved and waits for the rows of others"));
}

TEST(text, begins_with_the_verdict_and_holds_matrix_parts_and_advice) {
  const std::string text = text_of(judge(late_rank_2()));
  EXPECT_THAT(text, ::testing::StartsWith("dispatch and combine: "));
  EXPECT_THAT(text.substr(0, text.find('\n')), HasSubstr("for rank 2, which enters 2.0 ms late"));
  EXPECT_THAT(text, HasSubstr("for r3"));
  EXPECT_THAT(text, HasSubstr("scheduling"));
  EXPECT_THAT(text, HasSubstr("What to do: "));
}

// Every element is closed in its turn.
bool well_formed(const std::string& html) {
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = html.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '!' || tag.back() == '/' || name == "meta") continue;
    if (tag[0] != '/') {
      open.push_back(name);
    } else if (open.empty() || "/" + open.back() != tag) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

TEST(html, is_well_formed_and_needs_nothing_else) {
  auto all = late_rank_2();
  for (RankTrace& trace : all) trace.communicator = "<b>&\"";
  const Traces traces = choose_traces(all, "", "here");
  const std::string html = html_of(diagnose(traces), traces);
  EXPECT_TRUE(well_formed(html));
  for (const char* outside : {"http", "src=", "href=", "@import", "url(", "<script", "<b>"}) EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  EXPECT_THAT(html, HasSubstr("class=\"hot\""));
  EXPECT_THAT(html, HasSubstr("rank 0 waited 2.0 ms per operation for rank 2"));
  EXPECT_THAT(html, HasSubstr("class=\"wait\""));
}

}  // namespace
}  // namespace sluice::doctor::testing
