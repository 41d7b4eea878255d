// The formats that the options of precision/format name.
#pragma once

#include <vernier/options.h>

#include <string>
#include <vector>

#include "recipe.h"

namespace formats {

inline constexpr const char* unrounded = "fp32";

// Formats by name: those of [[precision.format]], else those of `vernier formats`.
class Names {
 public:
  explicit Names(vernier::Options& options);
  OptionalFormat find(const std::string& name) const;  // nothing: there is no such format
  // Refuses the option if there is no such format and it is not "fp32".
  void require(vernier::Options& options, const char* key, const std::string& name) const;

 private:
  void add(vernier::Options& one);
  std::vector<vernier::TensorFormat> own_;
};

}  // namespace formats
