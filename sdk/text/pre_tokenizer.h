// The steps that cut a text into the pieces that a model works on: `pre_tokenizer` of tokenizer.json.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normalizer.h"
#include "text/bpe/pieces.h"
#include "text/bpe/regex.h"

namespace vernier {

// The fate of the matches of an expression, as in `tokenizers`.
enum class SplitBehavior : std::uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct PieceStep {
  enum class Kind : std::uint8_t {
    rule,       // an expression that is matched by hand
    regex,      // Split, Digits, Punctuation
    white,      // WhitespaceSplit: white characters go
    words,      // Whitespace: the same, and words are cut from other characters
    bert,       // BertPreTokenizer: white characters go, punctuation characters are pieces
    add_space,  // `add_prefix_space` of ByteLevel
    metaspace,  // Metaspace: U+2581 for each space, and one before a text
  };
  enum class Space : std::uint8_t { always, first, never };  // Metaspace's own marks; first: before the whole text

  Kind kind = Kind::rule;
  PieceRule rule = PieceRule::gpt2;
  std::shared_ptr<const Regex> regex = {};
  SplitBehavior behavior = SplitBehavior::isolated;
  bool is_inverted = false;  // texts between matches count as matches
  Space space = Space::always;
  bool splits = true;  // Metaspace: each U+2581 begins a piece
};

// Memory for the pieces of one text.
struct PieceBuffer {
  std::vector<std::string_view> pieces, finer;
  std::deque<std::string> texts;  // texts that a step has changed
};

// Any thread may call the functions, with a buffer of its own.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<PieceStep> steps) : steps_(std::move(steps)) {}

  // Calls put(piece) for each piece of the text, in order. None is empty.
  template <class Put>
  void each(std::string_view text, Place place, PieceBuffer& buffer, const Put& put) const {
    if (steps_.empty()) return put(text);
    const bool ends_by_rule = steps_.back().kind == PieceStep::Kind::rule;
    if (!ends_by_rule) {
      run(steps_.size(), text, place, buffer);
      for (const auto& piece : buffer.pieces) put(piece);
      return;
    }
    run(steps_.size() - 1, text, place, buffer);
    for (const auto& part : buffer.pieces) {
      for (std::size_t at = 0; at < part.size();) {
        const auto end = piece_end(steps_.back().rule, part, at);
        put(part.substr(at, end - at));
        at = end;
      }
    }
  }

  // True if a piece ends between two characters, whatever stands beside them, and if the text behind them is cut alike
  // on its own.
  bool ends_piece(char32_t before, char32_t behind) const;
  // True if no step cuts a text.
  bool keeps_whole() const;
  bool marks_spaces() const;

 private:
  void run(std::size_t count, std::string_view text, Place place, PieceBuffer& buffer) const;
  std::vector<PieceStep> steps_;
};

}  // namespace vernier
