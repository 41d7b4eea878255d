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
  // Returns nothing for "fp32". key: the option, for messages.
  OptionalFormat of(vernier::Options& options, const char* key, const std::string& name) const;
  OptionalFormat find(const std::string& name) const;  // nothing: there is no such format

 private:
  void add(vernier::Options& one);
  std::vector<vernier::TensorFormat> own_;
};

}  // namespace formats
