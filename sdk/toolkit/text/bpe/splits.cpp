#include "splits.h"

#include <algorithm>

#include "text/unicode/unicode.h"

namespace vernier {

namespace {

struct Part {
  std::size_t begin, end;
  bool is_match;
};

// All of a text: the matches, and what is between them.
std::vector<Part> parts_of(const SplitStep& step, std::string_view text) {
  std::vector<Part> parts;
  std::size_t done = 0;
  for (std::size_t from = 0; from <= text.size();) {
    const auto match = step.regex->find(text, from);
    if (!match) break;
    const auto& [begin, end] = *match;
    if (begin > done) parts.push_back({done, begin, step.is_inverted});
    parts.push_back({begin, end, !step.is_inverted});
    done = end;
    if (end > begin) {
      from = end;
    } else {
      from = end < text.size() ? end + character_at(text, end).size : end + 1;
    }
  }
  if (done < text.size()) parts.push_back({done, text.size(), step.is_inverted});
  return parts;
}

// Lets matches go, or join them to what is beside them. A match behind a match is a part of its own.
std::vector<Part> arranged(std::vector<Part> parts, SplitBehavior behavior) {
  if (behavior == SplitBehavior::isolated) return parts;
  if (behavior == SplitBehavior::removed) {
    std::erase_if(parts, [](const Part& part) { return part.is_match; });
    return parts;
  }
  const bool goes_back = behavior == SplitBehavior::merged_with_next;
  if (goes_back) std::ranges::reverse(parts);
  std::vector<Part> all;
  bool was_match = false;
  for (const auto& part : parts) {
    const bool joins = behavior == SplitBehavior::contiguous ? part.is_match == was_match : part.is_match && !was_match;
    if (joins && !all.empty()) {
      auto& last = all.back();
      (goes_back ? last.begin : last.end) = goes_back ? part.begin : part.end;
    } else {
      all.push_back(part);
    }
    was_match = part.is_match;
  }
  if (goes_back) std::ranges::reverse(all);
  return all;
}

void split_into(const SplitStep& step, std::string_view text, std::vector<std::string_view>& all) {
  if (step.rule) {
    for (std::size_t at = 0; at < text.size();) {
      const auto end = piece_end(*step.rule, text, at);
      all.push_back(text.substr(at, end - at));
      at = end;
    }
    return;
  }
  for (const auto& [begin, end, is_match] : arranged(parts_of(step, text), step.behavior)) {
    if (end > begin) all.push_back(text.substr(begin, end - begin));
  }
}

}  // namespace

std::vector<std::string_view> split_by(const std::vector<SplitStep>& steps, std::string_view text) {
  std::vector<std::string_view> parts = {text};
  for (const auto& step : steps) {
    std::vector<std::string_view> finer;
    for (const auto& part : parts) split_into(step, part, finer);
    parts = std::move(finer);
  }
  return parts;
}

}  // namespace vernier
