// Reading and writing files of router decisions.
#include "cli/routing_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"
#include "cli/routing_model.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* header = "token,expert0,expert1,weight0,weight1\n";

std::string error_of(const std::string& text) {
  try {
    parse_routing(text, "f.csv");
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

TEST(routing_file, reads_lines_with_and_without_header) {
  for (const std::string head : {"", header}) {
    const Decisions d = parse_routing(head + "0,3,1,0.75,0.25\n1,0,2,1e-3,0\n", "f");
    EXPECT_EQ(d.topk, 2);
    EXPECT_THAT(d.ids, ElementsAre(3, 1, 0, 2));
    EXPECT_THAT(d.weights, ElementsAre(0.75F, 0.25F, 1e-3F, 0.0F));
    EXPECT_EQ(experts_used(d), 4);
  }
}

TEST(routing_file, takes_crlf_a_missing_last_line_end_and_no_expert) {
  const Decisions d = parse_routing("token,expert0,weight0\r\n0,5,1\r\n1,-1,0", "f");
  EXPECT_THAT(d.ids, ElementsAre(5, -1));
}

TEST(routing_file, a_byte_order_mark_is_no_part_of_the_first_line) {
  for (const char* text : {"\xEF\xBB\xBFtoken,expert0,weight0\n0,3,1\n", "\xEF\xBB\xBF" "0,3,1\n"}) {
    const Decisions decisions = parse_routing(text, "marked");
    EXPECT_EQ(decisions.tokens(), 1);
    EXPECT_EQ(decisions.ids, std::vector<std::int32_t>{3});
  }
  EXPECT_THROW(parse_routing("0,3,1\n\xEF\xBB\xBF" "1,3,1\n", "marked later"), FileError);
}

TEST(routing_file, a_weight_too_small_for_its_type_is_0) {
  const std::string tiny = "0." + std::string(400, '0') + "1";
  const Decisions d = parse_routing("0,1,2,3,1e-400,-1e-400," + tiny + "\n1,1,2,3,1e-60,1e-45,5e-324\n", "f");
  EXPECT_THAT(d.weights, ElementsAre(0.0F, 0.0F, 0.0F, 0.0F, 1e-45F, 0.0F));
  for (const std::string huge : {"1e400", "-1e400", "1e39"})
    EXPECT_THAT(error_of("0,1," + huge + "\n"), HasSubstr("weight \"" + huge + "\" is not a finite number"));
  EXPECT_THAT(error_of("0,1,1e-400x\n"), HasSubstr("is not a finite number"));
}

TEST(routing_file, names_the_line_of_every_error) {
  const std::string head = header;
  EXPECT_THAT(error_of(head + "0,1,2,0.5,0.5\n1,1,x,0.5,0.5\n"), HasSubstr("f.csv, line 3: expert \"x\""));
  EXPECT_THAT(error_of(head + "0,1,2,0.5\n"), HasSubstr("line 2: 4 columns"));
  EXPECT_THAT(error_of(head + "1,1,2,0.5,0.5\n"), HasSubstr("token 1 where 0 is due"));
  EXPECT_THAT(error_of(head + "0,1,1,0.5,0.5\n"), HasSubstr("expert 1 twice"));
  EXPECT_THAT(error_of(head + "0,1,65536,0.5,0.5\n"), HasSubstr("65536"));
  EXPECT_THAT(error_of(head + "0,1,-2,0.5,0.5\n"), HasSubstr("-2"));
  EXPECT_THAT(error_of(head + "0,1,2,nan,0.5\n"), HasSubstr("weight \"nan\""));
  EXPECT_THAT(error_of(head + "0,1,2,1e999,0.5\n"), HasSubstr("weight"));
  EXPECT_THAT(error_of(head + "0,1, 2,0.5,0.5\n"), HasSubstr("expert \" 2\""));
  EXPECT_THAT(error_of(head + "\n0,1,2,0.5,0.5\n"), HasSubstr("line 2: empty"));
  EXPECT_THAT(error_of("token,expert0,weight1\n"), HasSubstr("line 1: the header"));
  EXPECT_THAT(error_of("0,1\n"), HasSubstr("columns"));
  EXPECT_THAT(error_of(""), HasSubstr("no token"));
  EXPECT_THAT(error_of(head), HasSubstr("no token"));
  EXPECT_THAT(error_of(std::string(most_line_bytes + 1, '0') + "\n"), HasSubstr("longer than"));
  EXPECT_THAT(error_of("0,99999999999999999999,1\n"), HasSubstr("not a whole number"));
}

TEST(routing_file, more_than_64_experts_per_token_are_refused) {
  std::string line = "0";
  for (int i = 0; i < 65; ++i) line += "," + std::to_string(i);
  for (int i = 0; i < 65; ++i) line += ",1";
  EXPECT_THAT(error_of(line + "\n"), HasSubstr("K <= 64"));
}

TEST(routing_file, written_files_come_back_the_same) {
  const testing::TemporaryFolder folder;
  RoutingModel model;
  ASSERT_TRUE(parse_routing_model("olmoe", model));
  const Decisions d = generate(model, 64, 8, 300, 7);
  for (const char* name : {"a.csv", "a.csv.gz"}) {
    write_routing_file(folder.file(name), d);
    const Decisions back = read_routing_file(folder.file(name));
    EXPECT_EQ(back.ids, d.ids);
    for (std::size_t i = 0; i < d.weights.size(); ++i) ASSERT_NEAR(back.weights[i], d.weights[i], 1e-5);
  }
  EXPECT_EQ(testing::read_file(folder.file("a.csv")).substr(0, 14), "token,expert0,");
  EXPECT_EQ(testing::read_file(folder.file("a.csv.gz")).substr(0, 2), "\x1f\x8b");
}

TEST(routing_file, a_cut_or_missing_file_is_an_error) {
  const testing::TemporaryFolder folder;
  write_routing_file(folder.file("a.csv.gz"), generate({}, 64, 8, 300, 7));
  const std::string whole = testing::read_file(folder.file("a.csv.gz"));
  testing::write_file(folder.file("cut.csv.gz"), whole.substr(0, whole.size() / 2));
  EXPECT_THROW(read_routing_file(folder.file("cut.csv.gz")), FileError);
  EXPECT_THROW(read_routing_file(folder.file("none.csv")), FileError);
  EXPECT_THROW(read_routing_file(folder.file(".")), FileError);
  EXPECT_THROW(write_routing_file(folder.file("no/such/folder.csv"), generate({}, 8, 2, 3, 1)), FileError);
}

TEST(routing_file, gzip_streams_may_follow_each_other_and_nothing_else) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("a.csv.gz");
  write_routing_file(path, generate({}, 64, 8, 300, 7));
  const std::string whole = testing::read_file(path);
  const std::string head_only("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10);  // of a stream
  for (const std::string& more : {std::string("garbage"), std::string("x"), std::string(512, '\0'), head_only}) {
    testing::write_file(path, whole + more);
    EXPECT_THROW(read_routing_file(path), FileError) << more;
  }
  testing::write_file(path, whole + "garbage");
  try {
    read_routing_file(path);
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("other bytes follow"));
  }
  // Two streams are one text.
  write_routing_file(path, generate({}, 64, 8, 1, 7));
  const std::string head = testing::read_file(path);
  testing::write_file(path, head + head);
  try {
    read_routing_file(path);
    ADD_FAILURE() << "the second header is no token";
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("line 3: token \"token\""));
  }
}

}  // namespace
}  // namespace sluice::cli
