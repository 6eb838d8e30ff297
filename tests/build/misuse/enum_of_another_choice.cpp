// expect: (cannot convert|invalid conversion|cannot initialize|incompatible type)
// One choice is not taken for another: both are small numbers inside.
#include <sluice/dispatch.h>

void choose(sluice::DispatchArgs& args) {
#ifdef MISUSE
  args.layout = sluice::ScaleLayout::column;
#else
  args.scale_layout = sluice::ScaleLayout::column;
#endif
}
