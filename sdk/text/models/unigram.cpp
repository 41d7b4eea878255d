// Unigram (Kudo, ACL 2018): the tokens of a piece whose scores, logarithms of probabilities, have the largest sum. They
// are found from left to right by Viterbi's algorithm, with the rounding of the package that is followed: sums in
// float64 in `tokenizers`, in float32 in `sentencepiece`.
//
// `sentencepiece` sums over a whole text, so the rounding of a word depends on what stands before it. A text is cut
// where no token reaches over, and the tokens of a part are kept with the largest sum before it at which no rounding
// can change them: the best tokens must be ahead of all others by more than the rounding errors of two sums.
#include <vernier/error.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "model.h"
#include "neighbours.h"
#include "text/trie.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

// Real: the type of the sums.
template <class Real>
class Unigram final : public Model {
 public:
  explicit Unigram(const TokenizerFile& file)
      : scores_(file.scores.begin(), file.scores.end()),
        unknown_score_(static_cast<Real>(file.unknown_score)),
        unknown_(*file.unknown),
        has_bytes_(file.byte_fallback) {
    std::vector<std::pair<std::string_view, TokenId>> entries;
    for (const auto& [token, id] : file.vocabulary) {
      if (is_tokenizers || file.scores[static_cast<std::size_t>(id)] != not_in_text) entries.emplace_back(token, id);
    }
    if (!is_tokenizers) read_neighbours(entries);
    of_character_.fill(-1);
    for (const auto& [token, id] : entries) {
      if (token.size() == 1) of_character_[static_cast<unsigned char>(token[0])] = id;
    }
    trie_ = Trie(std::move(entries));
    for (unsigned byte = 0; has_bytes_ && byte < 256; ++byte) of_byte_[byte] = file.vocabulary.at(byte_token(byte));
  }

  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const override {
    if constexpr (is_tokenizers) {
      add_piece(piece, scratch, ids, [&] { cover(piece, 0, scratch.word); });
    } else {
      encode_text(piece, scratch, ids);
    }
  }

 private:
  static constexpr bool is_tokenizers = std::is_same_v<Real, double>;

  static constexpr Real most_sum = 100'000;

  struct Node {
    Real score = 0;
    Real second = -std::numeric_limits<Real>::infinity();  // score of the best of the other ways here
    std::uint32_t begin = none;                            // start of the token that ends here
    TokenId id = 0;
  };
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  // The best tokens of a part.
  struct Cover {
    Real sum;    // with what stands before it
    Real ahead;  // lead over all other tokens; 0 if one is unknown
  };

  void read_neighbours(const std::vector<std::pair<std::string_view, TokenId>>& entries) {
    std::vector<std::pair<char32_t, char32_t>> pairs;
    largest_score_ = std::abs(unknown_score_);
    for (const auto& [token, id] : entries) {
      largest_score_ = std::max(largest_score_, std::abs(scores_[static_cast<std::size_t>(id)]));
      for (std::size_t at = 0; at < token.size();) {
        const auto one = character_at(token, at);
        at += one.size;
        if (at < token.size()) pairs.emplace_back(one.code, character_at(token, at).code);
      }
    }
    neighbours_ = Neighbours(std::move(pairs));
  }

  struct Part {
    std::string_view text;
    TokenId only = none_only;  // the token of a part of one character of ASCII
    PieceCache::Entry* entry = nullptr;
  };
  static constexpr TokenId none_only = -1;

  Part part_at(std::string_view text, std::size_t at, Scratch& scratch) const {
    if (at == text.size()) return {};
    const auto apart = [&](char32_t before, char32_t behind) { return !neighbours_.has(before, behind); };
    Part part{text.substr(at, part_end(text, at, apart) - at)};
    if (part.text.size() == 1) part.only = of_character_[static_cast<unsigned char>(text[at])];
    if (part.only != none_only) return part;
    part.entry = scratch.cache.entry(part.text);
    __builtin_prefetch(part.entry);
    return part;
  }

  // Encodes a text as `sentencepiece` does.
  void encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const {
    const auto begin = ids.size();
    Real sum = 0;
    const auto put = [&](TokenId id) {
      ids.push_back(id);
      sum += scores_[static_cast<std::size_t>(id)];
    };
    auto next = part_at(text, 0, scratch);
    for (std::size_t at = 0; at < text.size();) {
      const auto [part, only, entry] = next;
      at += part.size();
      next = part_at(text, at, scratch);  // before this one is used, so that the memory has time to bring its entry
      if (std::abs(sum) > most_sum) sum = 0;
      if (only != none_only) {
        put(only);
        continue;
      }
      if (entry != nullptr && !entry->has(part)) learn(part, scratch, *entry);
      if (entry != nullptr && std::abs(sum) <= std::bit_cast<float>(entry->ids[0])) {
        for (std::size_t i = 1; i < entry->count; ++i) put(entry->ids[i]);
        continue;
      }
      auto& word = scratch.word;
      word.clear();
      sum = cover(part, sum, word).sum;
      const bool goes_on = ids.size() > begin && ids.back() == unknown_ && word.front() == unknown_;
      ids.insert(ids.end(), word.begin() + (goes_on ? 1 : 0), word.end());
    }
  }

  // Keeps the tokens of a part behind the largest sum before it at which they are sure.
  void learn(std::string_view part, Scratch& scratch, PieceCache::Entry& entry) const {
    auto& word = scratch.word;
    word.assign(1, 0);
    const auto size = static_cast<float>(part.size());
    const auto ahead = static_cast<float>(cover(part, 0, word).ahead);
    // A sum of at most `size` scores is off by half a unit of its last place for each. Four of them are compared: two
    // here, and two behind the sum before the part. Six leave room for the rounding of these lines.
    const auto error_of_one = 6 * size * std::numeric_limits<float>::epsilon() / 2;
    const auto own = size * static_cast<float>(largest_score_);
    auto limit = std::min(ahead / error_of_one, static_cast<float>(most_sum)) - own;
    if (word.size() > PieceCache::Entry::most_ids) {
      word.resize(1);
      limit = -1;
    }
    word[0] = std::bit_cast<TokenId>(limit);
    entry.keep(part, word);
  }

  // Adds the best tokens of a part behind a sum.
  Cover cover(std::string_view piece, Real before, std::vector<TokenId>& word) const {
    if (piece.size() >= none) throw Error("a piece of the text has more than 4 GB");
    thread_local std::vector<Node> best;  // by the end of the token
    best.assign(piece.size() + 1, Node());
    best[0].score = before;
    std::size_t reached = 0;  // the last end of a token
    for (std::uint32_t at = 0; at < piece.size();) {
      if (!is_tokenizers) recenter(best, at, reached);
      const auto size = static_cast<std::uint32_t>(character_at(piece, at).size);
      const Real till_here = best[at].score;
      const auto try_token = [&](std::size_t bytes, TokenId id, Real score) {
        auto& node = best[at + bytes];
        reached = std::max(reached, at + bytes);
        if (node.begin == none) {
          node = {.score = score, .begin = at, .id = id};
        } else if (score > node.score) {
          node = {score, node.score, at, id};
        } else {
          node.second = std::max(node.second, score);
        }
      };
      bool has_one = false;  // a token of this character alone
      trie_.prefixes(piece.substr(at), [&](std::size_t bytes, TokenId id) {
        try_token(bytes, id, scores_[static_cast<std::size_t>(id)] + till_here);
        has_one = has_one || bytes == size;
      });
      if (!has_one) try_token(size, unknown_, unknown_score_ + till_here);
      at += size;
    }
    return {best[piece.size()].score, trace_back(piece, best, word)};
  }

  // `sentencepiece` takes a sum that has grown from all nodes, so that float32 is precise enough.
  static void recenter(std::vector<Node>& best, std::size_t at, std::size_t reached) {
    const auto sum = best[at].score;
    if (std::abs(sum) <= most_sum) return;
    for (auto i = at; i <= reached; ++i) {
      if (best[i].begin != none) best[i].score -= sum;
    }
  }

  // Returns how far the tokens are ahead.
  Real trace_back(std::string_view piece, const std::vector<Node>& best, std::vector<TokenId>& word) const {
    const auto first = static_cast<std::ptrdiff_t>(word.size());
    auto ahead = std::numeric_limits<Real>::infinity();
    for (auto end = static_cast<std::uint32_t>(piece.size()); end > 0;) {
      const auto id = best[end].id;
      auto begin = best[end].begin;
      if (id != unknown_) {
        word.push_back(id);
        ahead = std::min(ahead, best[end].score - best[end].second);
      } else {
        ahead = 0;
        while (begin > 0 && best[begin].id == unknown_) begin = best[begin].begin;
        put_unknown(piece.substr(begin, end - begin), word);
      }
      end = begin;
    }
    std::reverse(word.begin() + first, word.end());
    return ahead;
  }

  // Puts the ids of characters that are not tokens, in reverse.
  void put_unknown(std::string_view text, std::vector<TokenId>& word) const {
    if (is_tokenizers) {  // they may be a token of a low score
      if (const auto match = trie_.longest(text); match.size == text.size()) return word.push_back(match.number);
    }
    if (!has_bytes_) return word.push_back(unknown_);
    for (std::size_t i = text.size(); i > 0; --i) word.push_back(of_byte_[static_cast<unsigned char>(text[i - 1])]);
  }

  std::vector<Real> scores_;  // by id
  Real unknown_score_;
  Real largest_score_ = 0;  // without its sign
  TokenId unknown_;
  bool has_bytes_;
  Trie trie_;
  Neighbours neighbours_;
  std::array<TokenId, 256> of_character_{};  // tokens of ASCII characters; -1: none
  std::array<TokenId, 256> of_byte_{};
};

}  // namespace

std::unique_ptr<const Model> unigram(const TokenizerFile& file) {
  if (file.is_float32) return std::make_unique<Unigram<float>>(file);
  return std::make_unique<Unigram<double>>(file);
}

}  // namespace vernier
