// expect: (no match|no viable|could not convert|cannot convert)
// What is only read cannot be given as an output.
#include <sluice/dispatch.h>

void give(sluice::DispatchArgs& args, sluice::ConstTensorView read_only, sluice::TensorView writable) {
#ifdef MISUSE
  args.output = read_only;
#else
  args.output = writable;
#endif
  args.rows = read_only;
}
