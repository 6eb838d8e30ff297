// expect: (decompose|cannot be|structured binding|binding)
// Results have names and are not unpacked by position: a new member would shift the others.
#include <sluice/communicator.h>

std::int64_t rows(sluice::Communicator& comm, const sluice::DispatchArgs& args) {
  auto sent = comm.dispatch(args);
#ifdef MISUSE
  auto [x, scales] = sent;
  return x.shape[0] + scales.shape[0];
#else
  return sent.rows.shape[0];
#endif
}
