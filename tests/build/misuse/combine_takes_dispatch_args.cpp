// expect: (no matching|cannot convert|could not convert|no viable)
// The arguments of one call are not those of another.
#include <sluice/communicator.h>

sluice::CombineResult home(sluice::Communicator& comm, const sluice::DispatchResult& sent) {
#ifdef MISUSE
  sluice::DispatchArgs args;
#else
  sluice::CombineArgs args;
#endif
  args.rows = sent.rows;
  args.route = sent.route;
  return comm.combine(args);
}
