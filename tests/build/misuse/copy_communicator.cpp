// expect: (deleted|no matching|implicitly)
// A communicator is one rank's membership: it moves, it is never copied.
#include <utility>

#include <sluice/communicator.h>

sluice::Communicator take(sluice::Communicator& comm) {
#ifdef MISUSE
  return sluice::Communicator(comm);
#else
  return sluice::Communicator(std::move(comm));
#endif
}
