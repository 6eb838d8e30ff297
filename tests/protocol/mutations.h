// The protocol with one of its rules broken: edits of the scripts, before they are queued.
#pragma once

#include "core/script.h"

namespace sluice::protocol {

void drop_open(core::Script& script, int rank);
void drop_close(core::Script& script, int rank);
void publish_before_close(core::Script& script, int rank);
void read_counts_after_close(core::Script& script, int rank);
void signal_before_record(core::Script& script, int rank);
void signal_before_rows(core::Script& script, int rank);
void finish_before_close(core::Script& script, int rank);

}  // namespace sluice::protocol
