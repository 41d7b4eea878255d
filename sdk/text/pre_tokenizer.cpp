#include "pre_tokenizer.h"

#include <algorithm>

#include "text/files/tokenizer_file.h"
#include "text/unicode/characters.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

struct Part {
  std::size_t begin, end;
  bool is_match;
};

// All of a text: the matches, and what is between them.
std::vector<Part> parts_of(const PieceStep& step, std::string_view text) {
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

using Cut = PieceStep::Kind;
using Pieces = std::vector<std::string_view>;

void split_by_regex(const PieceStep& step, std::string_view text, Pieces& all) {
  for (const auto& [begin, end, is_match] : arranged(parts_of(step, text), step.behavior)) {
    if (end > begin) all.push_back(text.substr(begin, end - begin));
  }
}

void split_by_rule(PieceRule rule, std::string_view text, Pieces& all) {
  for (std::size_t at = 0; at < text.size();) {
    const auto end = piece_end(rule, text, at);
    all.push_back(text.substr(at, end - at));
    at = end;
  }
}

// White characters go, and a piece ends where `is_end` says of two characters.
template <class IsEnd>
void split_at_white(std::string_view text, const IsEnd& is_end, Pieces& all) {
  const auto& classes = char_classes();
  const auto& flags = char_flags();
  std::size_t begin = 0, at = 0;
  unsigned before = 0;  // flags of the character before
  const auto put = [&] {
    if (at > begin) all.push_back(text.substr(begin, at - begin));
  };
  while (at < text.size()) {
    const auto [code, size] = character_at(text, at);
    if (classes[code] == CharClass::white) {
      put();
      begin = at + size;
    } else if (at > begin && is_end(before, flags[code])) {
      put();
      begin = at;
    }
    before = flags[code];
    at += size;
  }
  put();
}

// The text with a space before it, if it has none.
std::string_view with_space(std::string_view text, std::string_view space, PieceBuffer& buffer) {
  return text.starts_with(space) ? text : buffer.texts.emplace_back(space).append(text);
}

void split_metaspace(const PieceStep& step, std::string_view text, Place place, PieceBuffer& buffer) {
  using Space = PieceStep::Space;
  const bool adds =
      step.space == Space::always ? place != Place::continued : step.space == Space::first && place == Place::beginning;
  std::string_view marked = buffer.texts.emplace_back(with_replaced(text, " ", space_mark));
  if (adds) marked = with_space(marked, space_mark, buffer);
  for (std::size_t begin = 0; begin < marked.size();) {
    const auto end = step.splits ? std::min(marked.find(space_mark, begin + 1), marked.size()) : marked.size();
    buffer.finer.push_back(marked.substr(begin, end - begin));
    begin = end;
  }
}

void split_by(const PieceStep& step, std::string_view text, Place place, PieceBuffer& buffer) {
  auto& all = buffer.finer;
  switch (step.kind) {
    case Cut::rule:
      return split_by_rule(step.rule, text, all);
    case Cut::regex:
      return split_by_regex(step, text, all);
    case Cut::white:
      return split_at_white(
          text, [](unsigned, unsigned) { return false; }, all);
    case Cut::words:
      return split_at_white(
          text, [](unsigned before, unsigned behind) { return ((before ^ behind) & char_flag::word) != 0; }, all);
    case Cut::bert:
      return split_at_white(
          text, [](unsigned before, unsigned behind) { return ((before | behind) & char_flag::punctuation) != 0; },
          all);
    case Cut::add_space:
      all.push_back(place == Place::continued ? text : with_space(text, " ", buffer));
      return;
    case Cut::metaspace:
      return split_metaspace(step, text, place, buffer);
  }
}

// A step whose pieces end where white characters begin.
bool ends_at_space(const PieceStep& step) {
  return step.kind == Cut::white || step.kind == Cut::words || step.kind == Cut::bert ||
         (step.kind == Cut::metaspace && step.splits);
}

}  // namespace

void PreTokenizer::run(std::size_t count, std::string_view text, Place place, PieceBuffer& buffer) const {
  buffer.texts.clear();
  buffer.pieces.assign(1, text);
  const auto* begin = text.data();
  for (std::size_t i = 0; i < count; ++i) {
    buffer.finer.clear();
    for (const auto& part : buffer.pieces) {
      split_by(steps_[i], part, part.data() == begin ? place : Place::after_token, buffer);
    }
    const bool is_changed = steps_[i].kind == Cut::add_space || steps_[i].kind == Cut::metaspace;
    if (is_changed && !buffer.finer.empty() && buffer.pieces[0].data() == begin) begin = buffer.finer[0].data();
    std::swap(buffer.pieces, buffer.finer);
  }
}

bool PreTokenizer::ends_piece(char32_t before, char32_t behind) const {
  const auto cut_by_rule = [](const PieceStep& step) { return step.kind == Cut::rule || step.kind == Cut::add_space; };
  if (steps_.empty()) return false;
  if (std::ranges::all_of(steps_, cut_by_rule)) {
    return steps_.back().kind == Cut::rule && always_ends_piece(before, behind);
  }
  return behind == U' ' && char_classes()[before] != CharClass::white && std::ranges::all_of(steps_, ends_at_space);
}

bool PreTokenizer::keeps_whole() const {
  return std::ranges::all_of(steps_, [](const PieceStep& step) {
    return step.kind == Cut::add_space || (step.kind == Cut::metaspace && !step.splits);
  });
}

bool PreTokenizer::marks_spaces() const {
  return std::ranges::any_of(steps_, [](const PieceStep& step) { return step.kind == Cut::metaspace; });
}

}  // namespace vernier
