#include "left_out.h"

#include <map>

namespace vernier {

std::string left_out(const std::string& what) {
  static const std::map<std::string, std::string> component_of = {
#include "left_out.inc"
  };
  const auto found = component_of.find(what);
  if (found == component_of.end()) return "";
  const auto& component = found->second;
  return what + " belongs to the component " + component + ", which this build leaves out: configure it with " +
         "-DVERNIER_COMPONENTS=all, or with " + component + " among the components";
}

}  // namespace vernier
