// expect: (no match|no viable|could not convert|cannot convert|no known conversion)
// A channel number cannot land in the place of the stream.
#include <sluice/communicator.h>

void call(sluice::Communicator& comm, sluice::DispatchArgs args) {
#ifdef MISUSE
  comm.dispatch(args, 1);
#else
  args.channel = 1;
  comm.dispatch(args, sluice::Stream{});
#endif
}
