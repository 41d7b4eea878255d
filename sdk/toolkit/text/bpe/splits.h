// How the steps of a pre_tokenizer cut a text one after another: Split, Digits and Punctuation of `tokenizers`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "pieces.h"
#include "regex.h"

namespace vernier {

// The fate of the matches of an expression, as in `tokenizers`.
enum class SplitBehavior : std::uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitStep {
  std::optional<PieceRule> rule = {};       // is matched by hand; or else
  std::shared_ptr<const Regex> regex = {};  // by this
  SplitBehavior behavior = SplitBehavior::isolated;
  bool is_inverted = false;  // what lies between matches counts as one
};

// The parts into which the steps cut a text, in order. Empty ones are left out.
std::vector<std::string_view> split_by(const std::vector<SplitStep>& steps, std::string_view text);

}  // namespace vernier
