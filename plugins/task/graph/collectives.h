// Functional collectives in a graph: sums, gathers and scatters over ranks that hold one model together.
#pragma once

#include <map>
#include <string>

#include "operators.h"

namespace graph {

// Returns true for a collective that has a gradient here, or may have one: it depends on its arguments.
bool is_collective(const std::string& target);
// Returns why a collective cannot run, such as "takes the \"max\" …"; "": it can. constants: the arguments that the
// file has.
std::string trouble_with_collective(const std::map<std::string, c10::IValue>& constants);
// Throws Error where a rank could not send as much as the others.
void check_collective(const Call& call);

}  // namespace graph
