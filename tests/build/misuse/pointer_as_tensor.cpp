// expect: (no match|no viable|could not convert|cannot convert)
// A bare pointer has no shape.
#include <sluice/dispatch.h>

void give(sluice::DispatchArgs& args, float* data) {
#ifdef MISUSE
  args.weights = data;
#else
  args.weights = sluice::ConstTensorView(data, sluice::DataType::fp32, 16, 8);
#endif
}
