// The configurations that a comparison trains, from the words of its command.
#pragma once

#include <string>
#include <vector>

namespace vernier {

struct Candidate {
  std::string name;                // of its row in the table, and of its folder; no two are the same
  std::vector<std::string> files;  // merged left to right
  std::vector<std::string> sets;   // "KEY=VALUE", after those that hold for all
};

struct Wanted {
  std::vector<std::string> files = {};   // each is a candidate, or several with sweeps
  std::vector<std::string> bases = {};   // merged before each of the files
  std::vector<std::string> sweeps = {};  // "precision=fp32,bf16"
  bool precisions = false;               // the candidates of --precision
};

constexpr std::size_t most_candidates = 32;

// The product of files, precisions and sweeps; the first is the baseline. Throws Refused if a sweep cannot be read, or
// if there are more than most_candidates.
std::vector<Candidate> candidates_of(const Wanted& wanted);

}  // namespace vernier
