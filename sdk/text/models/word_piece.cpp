// WordPiece (Schuster and Nakajima, ICASSP 2012), as BERT uses it: at each place of a word the longest token, and one
// unknown token for a word that tokens do not cover. WordLevel has only tokens that are whole words.
#include "model.h"
#include "text/trie.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

class WordPiece final : public Model {
 public:
  explicit WordPiece(const TokenizerFile& file)
      : is_whole_(file.model == TokenizerFile::Model::word_level),
        most_characters_(file.most_characters),
        unknown_(*file.unknown) {
    std::vector<std::pair<std::string_view, TokenId>> first, others;
    for (const auto& [token, id] : file.vocabulary) {
      first.emplace_back(token, id);
      if (token.starts_with(file.prefix)) others.emplace_back(std::string_view(token).substr(file.prefix.size()), id);
    }
    first_ = Trie(std::move(first));
    if (!is_whole_) others_ = Trie(std::move(others));
  }

  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const override {
    add_piece(piece, scratch, ids, [&] {
      if (has_too_many(piece) || !cover(piece, scratch.word)) scratch.word.assign(1, unknown_);
    });
  }

 private:
  bool has_too_many(std::string_view piece) const {
    std::size_t characters = 0;
    for (const char c : piece) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    return characters > most_characters_;
  }

  bool cover(std::string_view piece, std::vector<TokenId>& word) const {
    for (std::size_t at = 0; at < piece.size();) {
      const auto match = (at == 0 ? first_ : others_).longest(piece.substr(at));
      if (match.size == 0 || (is_whole_ && match.size < piece.size())) return false;
      word.push_back(match.number);
      at += match.size;
    }
    return true;
  }

  bool is_whole_;
  std::size_t most_characters_;
  TokenId unknown_;
  Trie first_, others_;
};

}  // namespace

std::unique_ptr<const Model> word_piece(const TokenizerFile& file) {
  return std::make_unique<WordPiece>(file);
}

}  // namespace vernier
