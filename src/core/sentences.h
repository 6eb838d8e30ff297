// From what an operation met to the sentence and the type of its error.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "core/report.h"

namespace sluice::core {

// Where the capacity of this rank's dispatch came from, which decides the cure when it is too little.
enum class CapacityFrom { unknown, caller, output, arena };

// Which operation, on whose behalf a message speaks.
struct Context {
  OperationKind kind = OperationKind::none;
  int rank = 0;
  int ranks = 1;
  int channel = 0;
  const char* device_error = "";  // of its engine
  int process = 0;  // that made the communicator; 0: not known
  // Of the dispatch that made the route which the operation uses, and its channel.
  std::shared_ptr<const Report> made{};
  int made_on = 0;
  CapacityFrom capacity_from = CapacityFrom::unknown;
};

const char* name_of(OperationKind kind);

// What an event of the operation throws; null when it went well. `failed`: the channel had failed when
// the event happened, and only then the report's failure is meant (a combine may fail behind its result).
std::exception_ptr error_of(const Report& report, bool failed, const Context& context);

// The sentence for a channel that has failed.
std::string sentence(const Status& failure, const Context& context);

std::string sentence(const IdFault& fault);

}  // namespace sluice::core
