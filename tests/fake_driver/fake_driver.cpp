// A libcuda.so.1 that loads and then says no, as $FAKE_DRIVER asks:
//   old       knows CUDA 11.4 only
//   none      finds no GPU
//   mismatch  does not fit its kernel module
// It goes no further: past these answers the CUDA runtime wants tables that have no documentation.
#include <cuda.h>

#include <cstdlib>
#include <cstring>

#undef cuGetProcAddress

#define DRIVER extern "C" __attribute__((visibility("default")))

namespace {

bool asked_for(const char* what) {
  const char* const mode = std::getenv("FAKE_DRIVER");
  return mode != nullptr && std::strcmp(mode, what) == 0;
}

CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

DRIVER CUresult cuInit(unsigned) {
  if (asked_for("none")) return CUDA_ERROR_NO_DEVICE;
  return asked_for("mismatch") ? CUDA_ERROR_SYSTEM_DRIVER_MISMATCH : CUDA_ERROR_UNKNOWN;
}

DRIVER CUresult cuDriverGetVersion(int* version) {
  *version = asked_for("old") ? 11040 : CUDA_VERSION;
  return CUDA_SUCCESS;
}

DRIVER CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

DRIVER CUresult cuGetProcAddress_v2(const char* name, void** found, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
  if (result != nullptr) *result = CU_GET_PROC_ADDRESS_SUCCESS;
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  if (is("cuInit")) *found = reinterpret_cast<void*>(cuInit);
  else if (is("cuDriverGetVersion")) *found = reinterpret_cast<void*>(cuDriverGetVersion);
  else if (is("cuGetExportTable")) *found = reinterpret_cast<void*>(cuGetExportTable);
  else if (is("cuGetProcAddress")) *found = reinterpret_cast<void*>(cuGetProcAddress_v2);
  else *found = reinterpret_cast<void*>(not_supported);
  return CUDA_SUCCESS;
}

DRIVER CUresult cuGetProcAddress(const char* name, void** found, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, found, version, flags, nullptr);
}
