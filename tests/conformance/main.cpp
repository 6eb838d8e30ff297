#include <gtest/gtest.h>

#include "registry.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  conformance::register_all();
  return RUN_ALL_TESTS();
}
