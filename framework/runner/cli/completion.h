// Words that a shell offers when Tab is pressed. The scripts in framework/runner/shell call `vernier complete WORD…`.
#pragma once

#include <string>
#include <vector>

#include "wiring/host.h"

namespace vernier {

// The words that may stand at the cursor, sorted. One that ends in "=" or "." is to be typed on. Empty where a file is
// meant. words: the command line behind "vernier", up to the cursor; the last may be begun, or empty. bash cuts words
// at each "=", and gets back what belongs behind the last one. verbs and flags ("--set"): all that there are.
std::vector<std::string> completions(std::vector<std::string> words, const std::vector<std::string>& verbs,
                                     const std::vector<std::string>& flags, const Host& host);

}  // namespace vernier
