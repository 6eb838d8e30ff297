// expect: (cannot convert|could not convert|invalid conversion|cannot initialize|incompatible type)
// Nobody reads `true` in a call: who learns the counts is said by name.
#include <sluice/dispatch.h>

#ifdef MISUSE
sluice::DispatchArgs args() { return {.counts = true}; }
#else
sluice::DispatchArgs args() {
  sluice::DispatchArgs args;
  args.counts = sluice::Counts::bounded;
  return args;
}
#endif
