// Words that a shell offers when Tab is pressed behind a verb of vernier-train.
#pragma once

#include <string>
#include <vector>

#include "common/verb.h"
#include "wiring/host.h"

namespace vernier {

// Returns the words that may stand at the cursor, sorted; empty where a file is meant. One that ends in "=" or "." is
// continued. words: the command line behind the verb, up to the cursor; the last may be incomplete, or empty.
std::vector<std::string> completions(const Verb& verb, const std::vector<std::string>& words, const Host& host);

}  // namespace vernier
