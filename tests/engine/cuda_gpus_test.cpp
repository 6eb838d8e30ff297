// F5 for GPUs: what ranks say of theirs, and the one sentence when they cannot work together.
#if defined(SLUICE_CUDA)

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/cuda/gpus.h"

namespace {

using namespace sluice::cuda;
using testing::HasSubstr;
using testing::Not;

std::vector<GpuFacts> node(int ranks) {
  std::vector<GpuFacts> gpus(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    GpuFacts& gpu = gpus[static_cast<std::size_t>(r)];
    std::strcpy(gpu.name, "NVIDIA H200");
    std::strcpy(gpu.pci, ("0000:0" + std::to_string(r) + ":00.0").c_str());
    gpu.uuid[0] = static_cast<unsigned char>(r);
    gpu.reaches.fill(Reach::yes);
  }
  return gpus;
}

TEST(gpus, those_that_reach_each_other_work_together) {
  EXPECT_EQ(why_not_together(node(1)), "");
  EXPECT_EQ(why_not_together(node(8)), "");
}

TEST(gpus, what_a_process_does_not_see_is_not_refused) {
  std::vector<GpuFacts> gpus = node(3);
  for (GpuFacts& gpu : gpus) gpu.reaches.fill(Reach::unknown);
  EXPECT_EQ(why_not_together(gpus), "");
}

TEST(gpus, partial_peer_access_names_every_pair_once) {
  std::vector<GpuFacts> gpus = node(4);
  gpus[0].reaches[2] = Reach::no;
  gpus[2].reaches[0] = Reach::no;
  gpus[3].reaches[1] = Reach::no;  // one direction is enough
  const std::string why = why_not_together(gpus);
  EXPECT_THAT(why, HasSubstr("ranks 0 and 2 (0000:00:00.0 and 0000:02:00.0), ranks 1 and 3 (0000:01:00.0 and 0000:03:00.0)"));
  EXPECT_THAT(why, HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(why, Not(HasSubstr("ranks 0 and 1")));
  EXPECT_EQ(why.find("ranks 0 and 2"), why.rfind("ranks 0 and 2"));
}

TEST(gpus, mixed_models_are_one_message_with_all_of_them) {
  std::vector<GpuFacts> gpus = node(3);
  std::strcpy(gpus[1].name, "NVIDIA B200");
  gpus[0].reaches[1] = Reach::no;
  const std::string why = why_not_together(gpus);
  EXPECT_THAT(why, HasSubstr("rank 0 has NVIDIA H200 at 0000:00:00.0, rank 1 has NVIDIA B200 at 0000:01:00.0, "
                             "rank 2 has NVIDIA H200 at 0000:02:00.0"));
}

}  // namespace

#endif
