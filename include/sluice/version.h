// Which Sluice this is.
#pragma once

#include <sluice/export.h>

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 1
#define SLUICE_VERSION_PATCH 0

namespace sluice {

// The version of the library that was loaded, "major.minor.patch". It can differ from the macros
// above, which are those of the headers the caller was compiled with.
SLUICE_API const char* version() noexcept;

}  // namespace sluice
