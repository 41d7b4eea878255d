// Words that a shell offers when Tab is pressed. The scripts in framework/runner/shell call `vernier complete WORD…`.
#pragma once

#include <string>
#include <vector>

#include "common/verb.h"
#include "wiring/host.h"

namespace vernier {

// Returns the words that may stand at the cursor, sorted; empty where a file is meant. One that ends in "=" or "." is
// continued. words: the command line behind "vernier", up to the cursor; the last may be incomplete, or empty. verbs:
// all names. own: the verb of the first word, if this program runs it.
std::vector<std::string> completions(const std::vector<std::string>& words, const std::vector<std::string>& verbs,
                                     const Verb* own, const Host& host);

}  // namespace vernier
