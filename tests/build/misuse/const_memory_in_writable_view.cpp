// expect: (invalid conversion|no matching)
// Memory that is const cannot be named as writable.
#include <sluice/tensor.h>

#ifdef MISUSE
sluice::TensorView view_of(const float* data) { return sluice::TensorView(data, sluice::DataType::fp32, 4); }
#else
sluice::ConstTensorView view_of(const float* data) { return sluice::ConstTensorView(data, sluice::DataType::fp32, 4); }
#endif
