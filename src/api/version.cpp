#include <sluice/version.h>

#define SLUICE_TEXT(x) #x
#define SLUICE_NUMBER(x) SLUICE_TEXT(x)

namespace sluice {

const char* version() noexcept {
  return SLUICE_NUMBER(SLUICE_VERSION_MAJOR) "." SLUICE_NUMBER(SLUICE_VERSION_MINOR) "." SLUICE_NUMBER(SLUICE_VERSION_PATCH);
}

}  // namespace sluice
