// Unigram (Kudo, ACL 2018): the tokens of a piece whose scores, logarithms of probabilities, have the largest sum. They
// are found from left to right by Viterbi's algorithm, with the rounding of the package that is followed: sums in
// float64 in `tokenizers`, in float32 in `sentencepiece`.
#include <vernier/error.h>

#include <algorithm>
#include <cmath>

#include "model.h"
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
    trie_ = Trie(std::move(entries));
    for (unsigned byte = 0; has_bytes_ && byte < 256; ++byte) of_byte_[byte] = file.vocabulary.at(byte_token(byte));
  }

  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const override {
    add_piece(piece, scratch, ids, [&] { cover(piece, scratch.word); });
  }

 private:
  static constexpr bool is_tokenizers = std::is_same_v<Real, double>;

  struct Node {
    Real score = 0;
    std::uint32_t begin = none;  // of the token that ends here
    TokenId id = 0;
  };
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  void cover(std::string_view piece, std::vector<TokenId>& word) const {
    if (piece.size() >= none) throw Error("a piece of the text has more than 4 GB");
    thread_local std::vector<Node> best;  // by the end of the token
    best.assign(piece.size() + 1, Node());
    std::size_t reached = 0;  // the last end of a token
    for (std::uint32_t at = 0; at < piece.size();) {
      if (!is_tokenizers) recenter(best, at, reached);
      const auto size = static_cast<std::uint32_t>(character_at(piece, at).size);
      const Real till_here = best[at].score;
      const auto try_token = [&](std::size_t bytes, TokenId id, Real score) {
        auto& node = best[at + bytes];
        reached = std::max(reached, at + bytes);
        if (node.begin == none || score > node.score) node = {score, at, id};
      };
      bool has_one = false;  // a token of this character alone
      trie_.prefixes(piece.substr(at), [&](std::size_t bytes, TokenId id) {
        try_token(bytes, id, scores_[static_cast<std::size_t>(id)] + till_here);
        has_one = has_one || bytes == size;
      });
      if (!has_one) try_token(size, unknown_, unknown_score_ + till_here);
      at += size;
    }
    trace_back(piece, best, word);
  }

  // `sentencepiece` takes a sum that has grown from all nodes, so that float32 is precise enough.
  static void recenter(std::vector<Node>& best, std::size_t at, std::size_t reached) {
    constexpr Real most = 100'000;
    const auto sum = best[at].score;
    if (std::abs(sum) <= most) return;
    for (auto i = at; i <= reached; ++i) {
      if (best[i].begin != none) best[i].score -= sum;
    }
  }

  void trace_back(std::string_view piece, const std::vector<Node>& best, std::vector<TokenId>& word) const {
    for (auto end = static_cast<std::uint32_t>(piece.size()); end > 0;) {
      const auto id = best[end].id;
      auto begin = best[end].begin;
      if (id != unknown_) {
        word.push_back(id);
      } else {
        while (begin > 0 && best[begin].id == unknown_) begin = best[begin].begin;
        put_unknown(piece.substr(begin, end - begin), word);
      }
      end = begin;
    }
    std::ranges::reverse(word);
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
  TokenId unknown_;
  bool has_bytes_;
  Trie trie_;
  std::array<TokenId, 256> of_byte_{};
};

}  // namespace

std::unique_ptr<const Model> unigram(const TokenizerFile& file) {
  if (file.is_float32) return std::make_unique<Unigram<float>>(file);
  return std::make_unique<Unigram<double>>(file);
}

}  // namespace vernier
