// expect: (cannot convert|invalid conversion|cannot initialize|incompatible type)
// Choices are enums: a number is none.
#include <sluice/dispatch.h>

void choose(sluice::DispatchArgs& args) {
#ifdef MISUSE
  args.layout = 1;
#else
  args.layout = sluice::Layout::grouped;
#endif
}
