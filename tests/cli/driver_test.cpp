// The program beside a driver that says no (tests/fake_driver): one sentence, and the CPU engine works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace sluice::cli::testing {
namespace {

using ::testing::HasSubstr;

#if defined(SLUICE_FAKE_DRIVER)

RunOptions beside(const char* driver) {
  return {.environment = {{"LD_LIBRARY_PATH", SLUICE_FAKE_DRIVER}, {"FAKE_DRIVER", driver}}};
}

void expect_refusal(const char* driver, const char* sentence) {
  SCOPED_TRACE(driver);
  for (const char* command : {"bench", "check", "demo"}) {
    const Ran ran = run_program({command, "--engine", "cuda", "--json"}, beside(driver));
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err, HasSubstr(sentence)) << command;
  }
  const Ran info = run_program({"info", "--json"}, beside(driver));
  EXPECT_EQ(info.code, 0) << info.err;
  const auto record = info.lines().at(0);
  bool said = false;
  for (const auto& engine : record["engines"]) {
    said = said || (engine["name"] == "cuda" && engine["usable"] == false &&
                    engine["reason"].get<std::string>().find(sentence) != std::string::npos);
  }
  EXPECT_TRUE(said) << info.out;
  EXPECT_TRUE(record["gpus"].empty());
  const Ran cpu = run_program({"bench", "--tokens", "8", "--iters", "2", "--warmup", "0"}, beside(driver));
  EXPECT_EQ(cpu.code, 0) << cpu.err;
}

TEST(driver, too_old_a_one_is_named_with_what_is_needed) {
  expect_refusal("old", "the NVIDIA driver knows CUDA 11.4, this build has ");
}
TEST(driver, without_a_gpu_says_so) { expect_refusal("none", "no GPU can be used: no CUDA-capable device is detected"); }
TEST(driver, that_does_not_fit_its_module_says_so) {
  expect_refusal("mismatch", "no GPU can be used: system has unsupported display driver");
}

#else

TEST(driver, says_why_it_cannot_be_used) { GTEST_SKIP() << "this build has no CUDA"; }

#endif

}  // namespace
}  // namespace sluice::cli::testing
