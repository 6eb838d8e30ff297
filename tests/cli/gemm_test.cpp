// The shape of the GEMMs that the bench runs beside operations. What they do to times needs a GPU.
#include "cli/gemm.h"

#include <gtest/gtest.h>

#include "cli/program.h"

namespace sluice::cli::testing {
namespace {

TEST(gemm, shape_is_read_and_told) {
  const auto told = [](const char* text) { return text_of(parse_gemm(text).value_or(GemmShape{0, 0, 0})); };
  EXPECT_EQ(told("gemm"), "8192x4096x7168");
  EXPECT_EQ(told("gemm:512x32768x1024"), "512x32768x1024");
  EXPECT_EQ(told("gemm:504x512x512"), "0x0x0");
  EXPECT_EQ(told("gemm:512x512x32776"), "0x0x0");
  EXPECT_EQ(told("gemm:512x512x512x"), "0x0x0");
  EXPECT_EQ(told(" gemm"), "0x0x0");
  EXPECT_EQ(told("copy:d2h"), "0x0x0");
}

TEST(gemm, size_does_not_depend_on_them) {
  const std::vector<std::string> arguments{"info", "--size", "--json", "--tokens", "16", "--hidden", "64"};
  auto with = arguments;
  with.insert(with.end(), {"--overlap", "gemm"});
  EXPECT_EQ(run_program(arguments).lines().at(0)["window_bytes"],
            run_program(with).lines().at(0)["window_bytes"]);
}

}  // namespace
}  // namespace sluice::cli::testing
