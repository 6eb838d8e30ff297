// expect: (no match|no viable|could not convert|cannot convert)
// The same for combine: rows may be read-only, the output not.
#include <sluice/combine.h>

void give(sluice::CombineArgs& args, sluice::ConstTensorView read_only, sluice::TensorView writable) {
  args.rows = read_only;
#ifdef MISUSE
  args.output = read_only;
#else
  args.output = writable;
#endif
}
