// Which sanitizers a test program was built with: clang answers __has_feature, g++ defines a macro for each.
#pragma once

#if defined(__has_feature)
#define SLUICE_HAS_FEATURE(name) __has_feature(name)
#else
#define SLUICE_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || SLUICE_HAS_FEATURE(thread_sanitizer)
#define SLUICE_THREAD_SANITIZER 1
#else
#define SLUICE_THREAD_SANITIZER 0
#endif
#if defined(__SANITIZE_ADDRESS__) || SLUICE_HAS_FEATURE(address_sanitizer)
#define SLUICE_ADDRESS_SANITIZER 1
#else
#define SLUICE_ADDRESS_SANITIZER 0
#endif
#define SLUICE_SANITIZED (SLUICE_THREAD_SANITIZER || SLUICE_ADDRESS_SANITIZER)  // has its own heap
