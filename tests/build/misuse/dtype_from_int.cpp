// expect: (no matching|cannot convert|invalid conversion)
// An element type is named; the shape cannot slip into its place.
#include <sluice/tensor.h>

sluice::TensorView view_of(void* data) {
#ifdef MISUSE
  return sluice::TensorView(data, 128, 7168);
#else
  return sluice::TensorView(data, sluice::DataType::bf16, 128, 7168);
#endif
}
