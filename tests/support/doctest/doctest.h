// doctest, after LibTorch's header of logging: both define CHECK, and the later one counts, whatever a test includes
// first.
#pragma once

#if __has_include(<c10/util/Logging.h>)
#include <c10/util/Logging.h>
#endif

#include_next <doctest/doctest.h>
