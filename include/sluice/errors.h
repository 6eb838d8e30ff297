// Every error that Sluice throws. Each carries one sentence with the call, the rank, the value, the
// limit and the cure. Nothing is printed, no process is ended, and nothing is lost by an error except
// where PeerError says so.
#pragma once

#include <stdexcept>
#include <string>

#include <sluice/export.h>

namespace sluice {

// Base of all. `kind()` is the class name ("PeerError"), for machines that read JSON.
class SLUICE_API Error : public std::runtime_error {
 public:
  Error(const char* kind, const std::string& message, int rank = -1)
      : std::runtime_error(message), kind_(kind), rank_(rank) {}
  ~Error() override;
  const char* kind() const noexcept { return kind_; }
  // The rank that threw, or -1 outside a group.
  int rank() const noexcept { return rank_; }

 private:
  const char* kind_;
  int rank_;
};

// The caller's own arguments or options are wrong. Only this rank gets it; in a collective call the
// peers get PeerError ("rank 0 refused: ...") in the same operation, unless the call names no channel of
// the communicator or another host thread is inside a call on it. The communicator stays usable.
class SLUICE_API ArgumentError : public Error {
 public:
  explicit ArgumentError(const std::string& message, int rank = -1) : Error("ArgumentError", message, rank) {}
  ~ArgumentError() override;
};

// A peer refused, differs, is late, or is gone. After "refused" or "differs" the communicator stays
// usable. After "late" or "gone" the channel has failed for good: its next calls throw this again;
// make a new communicator.
class SLUICE_API PeerError : public Error {
 public:
  explicit PeerError(const std::string& message, int rank = -1) : Error("PeerError", message, rank) {}
  ~PeerError() override;
};

// Too little room in an output, found before any row moved, thrown on every rank; or, from the call
// itself, no room in this rank's arena, of which the peers learn by PeerError. Says need and capacity.
// The communicator stays usable.
class SLUICE_API CapacityError : public Error {
 public:
  explicit CapacityError(const std::string& message, int rank = -1) : Error("CapacityError", message, rank) {}
  ~CapacityError() override;
};

// The machine said no: memory, descriptors, sockets, an engine that is not usable here.
class SLUICE_API SystemError : public Error {
 public:
  explicit SystemError(const std::string& message, int rank = -1) : Error("SystemError", message, rank) {}
  ~SystemError() override;
};

}  // namespace sluice
