#include <sluice/errors.h>

namespace sluice {

Error::~Error() = default;
ArgumentError::~ArgumentError() = default;
PeerError::~PeerError() = default;
CapacityError::~CapacityError() = default;
SystemError::~SystemError() = default;

}  // namespace sluice
