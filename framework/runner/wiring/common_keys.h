// Keys that people know from other trainers, for hints in messages.
#pragma once

#include <string>

namespace vernier {

// Returns the key that a word stands for, "optimizer.learning_rate" for "lr" or "learning-rate"; "" for an unknown one.
std::string common_key(const std::string& word);

}  // namespace vernier
