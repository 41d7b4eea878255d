// Includes doctest after LibTorch's header of logging, whatever a test includes first: both define CHECK, and the last
// definition wins.
#pragma once

#if __has_include(<c10/util/Logging.h>)
#include <c10/util/Logging.h>
#endif

#include_next <doctest/doctest.h>
