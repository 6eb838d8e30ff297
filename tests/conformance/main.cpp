#include <gtest/gtest.h>

#include <cstdlib>

#include "memory.h"
#include "registry.h"

int main(int argc, char** argv) {
  // Before any test touches CUDA, which reads them once; the library reads the first whenever it counts queues.
  if (conformance::on_cuda()) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  }
  testing::InitGoogleTest(&argc, argv);
  conformance::register_all();
  return RUN_ALL_TESTS();
}
