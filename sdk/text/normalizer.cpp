#include "normalizer.h"

#include <vernier/error.h>

#include <algorithm>

#include "text/files/tokenizer_file.h"
#include "text/unicode/characters.h"
#include "text/unicode/normal_forms.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

using Normal = NormalStep::Kind;

// Calls put(code, bytes of the character) for each character.
template <class Put>
std::string each_character(std::string_view text, const Put& put) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, size] = character_at(text, at);
    put(result, code, text.substr(at, size));
    at += size;
  }
  return result;
}

// Characters with some flags go, those with others become a space.
std::string without(std::string_view text, unsigned gone, unsigned space = 0) {
  const auto& flags = char_flags();
  return each_character(text, [&](std::string& result, char32_t code, std::string_view bytes) {
    if ((flags[code] & gone) != 0) return;
    result += (flags[code] & space) != 0 ? std::string_view(" ") : bytes;
  });
}

std::string without_controls(std::string_view text) {
  const auto& flags = char_flags();
  const auto& classes = char_classes();
  return each_character(text, [&](std::string& result, char32_t code, std::string_view bytes) {
    if ((flags[code] & char_flag::control) != 0) return;
    result += classes[code] == CharClass::white ? std::string_view(" ") : bytes;
  });
}

std::string with_spaces(std::string_view text) {
  const auto& flags = char_flags();
  return each_character(text, [&](std::string& result, char32_t code, std::string_view bytes) {
    if ((flags[code] & char_flag::chinese) == 0) {
      result += bytes;
    } else {
      result.append(" ").append(bytes).append(" ");
    }
  });
}

std::string stripped(std::string_view text, bool at_begin, bool at_end) {
  const auto is_white = [](char32_t code) { return char_classes()[code] == CharClass::white; };
  while (at_begin && !text.empty()) {
    const auto [code, size] = character_at(text, 0);
    if (!is_white(code)) break;
    text.remove_prefix(size);
  }
  while (at_end && !text.empty()) {
    const auto last = character_before(text, text.size());
    if (!is_white(character_at(text, last).code)) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

// SentencePiece's normalizer (Kudo and Richardson, EMNLP 2018).
class SentencePiece {
 public:
  SentencePiece(const NormalStep& step, std::string_view text) : step_(step), rest_(text) {
    for (unsigned char byte = 0; byte < 0x80; ++byte) {
      stays_[byte] = (!step.map || step.map->keeps(byte)) && (!step.kept || !step.kept->has_first(byte));
    }
  }

  std::string run(Place place) {
    while (step_.removes_spaces && !rest_.empty()) {
      const auto before = rest_;
      if (next() == " ") continue;
      rest_ = before;
      break;
    }
    if (rest_.empty()) return "";
    result_.reserve(rest_.size() + rest_.size() / 2);
    if (step_.adds_space && place != Place::continued) result_ += space_mark;
    bool was_space = step_.removes_spaces;
    const auto size = rest_.size();
    while (!rest_.empty()) {
      auto part = next();
      while (was_space && part.starts_with(' ')) part.remove_prefix(1);
      if (!part.empty()) {
        put(part);
        require_likely(size, result_.size());
        was_space = part.ends_with(' ');
      }
      was_space = was_space && step_.removes_spaces;
    }
    while (step_.removes_spaces && result_.ends_with(space_mark)) result_.resize(result_.size() - space_mark.size());
    return std::move(result_);
  }

 private:
  // The bytes at the begin of the text that stay as they are: one space, or characters without a space.
  std::size_t kept_size() const {
    const auto stays = [&](std::size_t at) {
      return stays_[static_cast<unsigned char>(rest_[at])] && static_cast<unsigned char>(rest_[at + 1]) < 0x80;
    };
    std::size_t size = 0;
    while (size + 1 < rest_.size() && stays(size) && rest_[size] != ' ') ++size;
    return size == 0 && rest_.size() > 1 && stays(0) ? 1 : size;
  }
  // Takes a part from the text and returns what it becomes.
  std::string_view next() {
    auto size = kept_size();
    if (size > 0) {
      const auto part = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return part;
    }
    size = step_.kept ? step_.kept->longest(rest_).size : 0;
    std::string_view part = rest_.substr(0, size);
    if (size == 0) {
      const auto rule = step_.map ? step_.map->longest(rest_) : std::nullopt;
      size = rule ? rule->size : character_at(rest_, 0).size;
      part = rule ? rule->text : rest_.substr(0, size);
    }
    rest_.remove_prefix(size);
    return part;
  }
  void put(std::string_view part) {
    if (part == " ") {
      result_ += space_mark;
      return;
    }
    for (auto space = part.find(' '); space != std::string_view::npos; space = part.find(' ')) {
      result_.append(part.substr(0, space)).append(space_mark);
      part.remove_prefix(space + 1);
    }
    result_ += part;
  }

  const NormalStep& step_;
  std::array<bool, 256> stays_{};  // by a character of ASCII that another one follows
  std::string_view rest_;
  std::string result_;
};

std::string applied(const NormalStep& step, std::string text, Place place) {
  switch (step.kind) {
    case Normal::form_c:
      return in_form(NormalForm::c, text);
    case Normal::form_d:
      return in_form(NormalForm::d, text);
    case Normal::form_kc:
      return in_form(NormalForm::kc, text);
    case Normal::form_kd:
      return in_form(NormalForm::kd, text);
    case Normal::lower_case:
      return in_lower_case(text);
    case Normal::strip:
      return stripped(text, step.at_begin && place != Place::continued, step.at_end);
    case Normal::strip_marks:
      return without(text, char_flag::mark);
    case Normal::nmt:
      return without(text, char_flag::nmt_control, char_flag::nmt_space);
    case Normal::clean:
      return without_controls(text);
    case Normal::space_chinese:
      return with_spaces(text);
    case Normal::strip_accents:
      return without(text, char_flag::nonspacing);
    case Normal::prepend:
      return text.empty() || place == Place::continued ? text : text.insert(0, step.to);
    case Normal::replace:
      return step.regex ? with_replaced(*step.regex, text, step.to) : with_replaced(text, step.from, step.to);
    case Normal::character_map:
      return step.map->apply(text);
    case Normal::sentence_piece:
      return SentencePiece(step, text).run(place);
  }
  return text;
}

// Letters and digits that stay what they are, whatever stands beside them.
bool is_plain(char32_t code) {
  const auto is_in = [&](char32_t first, char32_t last) { return code >= first && code <= last; };
  return is_in(U'a', U'z') || is_in(U'A', U'Z') || is_in(U'0', U'9') || is_in(0x4E00, 0x9FFF);
}

bool can_cut_in(const NormalStep& step, char32_t before, char32_t behind) {
  const bool is_one = !step.from.empty() && character_at(step.from, 0).size == step.from.size();
  switch (step.kind) {
    case Normal::form_c:
      return begins_anew(behind);
    case Normal::prepend:
      return true;
    case Normal::replace:
      return !step.regex && is_one;
    case Normal::sentence_piece:
      return !step.map && !step.kept && !step.removes_spaces;
    default:
      return is_plain(before) && behind < 0x80;
  }
}

}  // namespace

void require_likely(std::size_t before, std::size_t after) {
  constexpr std::size_t most = 64, always = 4096;  // NFKC makes 11 bytes of one
  if (after / most > before + always / most) {
    refuse("the tokenizer makes more than 64 times as many bytes of a text, which no sound tokenizer does");
  }
}

std::string with_replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = 0;;) {
    const auto found = text.find(from, at);
    result += text.substr(at, found - at);
    require_likely(text.size(), result.size());
    if (found == std::string_view::npos) return result;
    result += to;
    at = found + from.size();
  }
}

std::string with_replaced(const Regex& regex, std::string_view text, std::string_view to) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t from = 0; from <= text.size();) {
    const auto match = regex.find(text, from);
    if (!match) break;
    result.append(text.substr(done, match->begin - done)).append(to);
    require_likely(text.size(), result.size());
    done = match->end;
    from = match->end > match->begin ? match->end
           : done < text.size()      ? done + character_at(text, done).size
                                     : done + 1;
  }
  return result.append(text.substr(done));
}

std::string Normalizer::apply(std::string_view segment, Place place) const {
  std::string text(segment);
  for (const auto& step : steps_) {
    text = applied(step, std::move(text), place);
    require_likely(segment.size(), text.size());
  }
  return text;
}

bool Normalizer::can_cut(char32_t before, char32_t behind) const {
  return std::ranges::all_of(steps_, [&](const NormalStep& step) { return can_cut_in(step, before, behind); });
}

bool Normalizer::marks_spaces() const {
  return std::ranges::any_of(steps_, [](const NormalStep& step) {
    return step.kind == Normal::sentence_piece || (step.kind == Normal::replace && step.from == " ");
  });
}

}  // namespace vernier
