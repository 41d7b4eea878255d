// Words that other trainers use for what Vernier calls otherwise: "lr" for "learning_rate".
#pragma once

#include <vernier/abi.h>

#include <string>
#include <vector>

namespace vernier {

// Returns the first of `words` that means the same as `word`, or "". Hyphens are underscores here, and capitals small
// letters. A word is also looked up without amp_, mixed_precision_, enable_ and the like before it. For hints in
// messages only.
VERNIER_API std::string synonym(const std::string& word, const std::vector<std::string>& words);

// Returns the key of a configuration that a word stands for, "optimizer.learning_rate" for "lr"; "" for an unknown one.
VERNIER_API std::string common_key(const std::string& word);

// Returns what does here what a key of other trainers asks for, as the end of a message: "`[[callback]] use =
// \"memory\"` measures it" for "log_memory_usage". "" for an unknown word. The lines in it work as they stand, and have
// the dtype or the number of the key. value: the key's value in TOML, "" if it is unknown.
VERNIER_API std::string done_by(const std::string& word, const std::string& value = "");

// The function of <vernier/options.h>, for programs without LibTorch.
VERNIER_API std::string nearest(const std::string& word, const std::vector<std::string>& words);

}  // namespace vernier
