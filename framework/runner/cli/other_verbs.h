// Verbs that this program does not know: `vernier VERB` runs the program vernier-VERB, as git and cargo do.
#pragma once

#include <string>
#include <vector>

namespace vernier {

// Becomes the program vernier-VERB, which lies beside this program or else in PATH. It gets the arguments after the
// verb, and standard input and output stay. Returns where there is no such program. Throws Error where it cannot be
// started. argv: a verb, its arguments, a null pointer.
void become_other_verb(char** argv);

// The verbs of the programs that lie beside this one.
std::vector<std::string> other_verbs();

}  // namespace vernier
