// Marks what libsluice.so exports; everything else is hidden.
#pragma once

#define SLUICE_API __attribute__((visibility("default")))
