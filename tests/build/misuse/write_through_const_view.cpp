// expect: (invalid conversion|cannot initialize)
// A view of memory that is only read gives out pointers to const.
#include <sluice/tensor.h>

#ifdef MISUSE
float* first(const sluice::ConstTensorView& view) { return view.as<float>(); }
#else
const float* first(const sluice::ConstTensorView& view) { return view.as<float>(); }
#endif
