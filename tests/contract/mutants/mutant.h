// The option by which the plugins of this folder break a law each: mutants.tsv lists its words.
#pragma once

#include <vernier/sdk.h>

#include <string>

class Mutant {
 public:
  explicit Mutant(vernier::Options& options)
      : word_(options.get("mutant", std::string("none"), "the mistake that it makes")) {}
  bool is(const char* word) const { return word_ == word; }

 private:
  std::string word_;
};
