// <immintrin.h> without the warnings of GCC 12 about registers that this header leaves undefined on purpose. For files
// that are compiled by themselves: it is quiet about the rest of the file too.
#pragma once

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif
