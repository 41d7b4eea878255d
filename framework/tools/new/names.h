// The words that `vernier new` takes and writes.
#pragma once

#include <string>
#include <vector>

namespace vernier {

// The roles that have a template.
const std::vector<std::string>& roles();

// Says why this cannot be the name of a plugin or program; empty where it can.
std::string why_no_name(const std::string& name);

// "grad_watch" becomes "GradWatch".
std::string camel_case(const std::string& name);

// The nearest word, or "" if more than a third of the letters would have to change.
std::string nearest(const std::string& word, const std::vector<std::string>& words);

}  // namespace vernier
